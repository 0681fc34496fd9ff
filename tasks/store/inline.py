"""A stage in this process and a temporary store: for tests of stages, without a child process."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.stage import StopSignal
from tasks.store import attempt
from tasks.store.artifact import Artifact
from tasks.store.events import Events, Listener
from tasks.store.store import Store


def run_inline(
    stage_name: str,
    config: Any,
    inputs: Mapping[str, Artifact] | None = None,
    store: Store | None = None,
    *,
    on_event: Listener | None = None,
    stop: StopSignal | None = None,
    run_info: Mapping[str, Any] | None = None,
) -> Artifact:
    """The artifact of a stage whose `run` is called in this process; exceptions come through as they are.

    Without a store, a new one in a temporary directory is made (and left to the system's cleaning).
    """
    if store is None:
        folder = Path(tempfile.mkdtemp(prefix="encore-"))
        store = Store(folder / "store", cache_dir=folder / "cache")
    return attempt.make(
        stage_name,
        config,
        inputs or {},
        store,
        events=Events(on_event or (lambda event: None)),
        stop=stop or StopSignal(),
        run_info=run_info,
    )

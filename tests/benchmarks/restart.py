"""Seconds from starting a preempted base stage again to its first new step, its programs being in the compile cache.

    python tests/benchmarks/restart.py [word …]

The words are overrides of the config, which is the rehearsal's by default. The stages before base run first; base is
sent SIGTERM after STOP_STEP steps, and started again on a machine without local caches.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from conf.compose import compose
from tasks.store import Artifact, StagePreempted, Store, run_stage
from tasks.store.parent import _running

STOP_STEP = 20


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        places = [f"store.root={folder}/root", f"store.cache_dir={folder}/cache", "base.log_every=1"]
        config = compose([*sys.argv[1:], *places])
        store = Store.from_config(config.store)
        made: dict[str, Artifact] = {}
        for stage, roles in (("corpus", ()), ("tokenizer", ("corpus",)), ("shards", ("corpus", "tokenizer"))):
            made[stage] = run_stage(stage, config, {role: made[role] for role in roles}, store, on_event=silent)
        inputs = {role: made[role] for role in ("shards", "tokenizer")}

        def until(step: int, what: str) -> None:
            """Run base, and stop it once it has told of `step`."""
            begun, told = time.monotonic(), []

            def listen(event: dict[str, Any]) -> None:
                if event["kind"] == "log" and "compilation cache" in event["message"]:
                    print(f"{what}: {event['message']}")
                if event["kind"] == "progress" and event.get("step", 0) >= step and "loss" in event and not told:
                    told.append(event["step"])
                    print(f"{what}: step {event['step']} after {time.monotonic() - begun:.1f} s, ", end="")
                    print(f"load of the machine {os.getloadavg()[0]:.1f}")
                    [child] = _running
                    os.kill(child.pid, signal.SIGTERM)

            try:
                run_stage("base", config, inputs, store, on_event=listen)
            except StagePreempted as error:
                print(f"{what}: {error} {time.monotonic() - begun:.1f} s in all")

        until(STOP_STEP, "first")
        shutil.rmtree(f"{folder}/cache")
        until(STOP_STEP + 1, "again")


def silent(event: dict[str, Any]) -> None:
    """No output."""


if __name__ == "__main__":
    main()

"""What the tests of tasks share: inputs of a tiny run, made once, a compilation cache, and a sandbox that works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that were compiled by one test are found by the next, as the cache at the root does it for stages."""
    import jax

    from tasks.store.compile_cache import SETTINGS

    settings = SETTINGS | {"jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled"))}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, compiled_once: None):
    """The store and the artifacts (by role) that a tiny run trains on."""
    from tests.tasks.training.tiny import make_inputs

    return make_inputs(tmp_path_factory.mktemp("tiny"), ("shards", "conversations"))


@pytest.fixture(scope="session")
def tiny_base(tiny, tmp_path_factory: pytest.TempPathFactory):
    """A tiny base that was never interrupted."""
    from tasks.store import Store, run_inline
    from tests.tasks.training.tiny import BASE_INPUTS, config

    directory: Path = tmp_path_factory.mktemp("base")
    store = Store(directory / "store", cache_dir=directory / "cache")
    return run_inline("base", config(), {role: tiny[1][role] for role in BASE_INPUTS}, store)


@pytest.fixture(scope="session")
def jail() -> None:
    """Needed by tests that run programs in the sandbox: skips them where this machine cannot isolate one."""
    from tasks import sandbox

    if reason := sandbox.unavailable():
        pytest.skip(reason)

"""What tests share: third-party data where there is some, the numbers from outside, a bucket, a store, Prefect."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gcs_server import GcsServer

REPOSITORY = Path(__file__).parents[1]
# The suite compiles far more than it computes: a tiny step takes 6 instead of 11 CPU seconds from trace to result.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with third-party data: ENCORE_SHARED, or `shared` beside the repository."""
    folder = Path(os.environ.get("ENCORE_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"needs third-party data at {folder}: set ENCORE_SHARED")
    return folder


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder with numbers from outside: ENCORE_GOLDEN, or tests/golden."""
    return Path(os.environ.get("ENCORE_GOLDEN", REPOSITORY / "tests/golden"))


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """A GCS protocol server on loopback that keeps its objects over a restart; one a test process."""
    server = GcsServer(tmp_path_factory.mktemp("gcs"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def gcs_root(gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """`gs://bucket/prefix` in a fresh bucket; the environment leads every client there, also of child processes."""
    for name, value in gcs_server.environment().items():
        monkeypatch.setenv(name, value)
    return f"gs://{gcs_server.new_bucket()}/runs"


@pytest.fixture
def store(tmp_path: Path):
    """An empty store in a local directory."""
    from tasks.store import Store

    return Store(tmp_path / "store", cache_dir=tmp_path / "cache", lease_seconds=5)


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """Prefect's own server with an empty database, one a test process (KNOWN_FAILURES B13)."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield

"""The embedded Prefect server lives exactly as long as the command that started it (KNOWN_FAILURES B8)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOW = """
import sys
from prefect import flow
from conf.compose import compose
from flows.command import failing_in_one_sentence, guarded
from flows.running import Runner
from tasks.store import Store

config = compose(sys.argv[1:])

@flow(name="slow", persist_result=False)
@failing_in_one_sentence
def slow():
    Runner(config, Store.from_config(config.store))("tests.flows.stages.slow", label="slow")

sys.exit(guarded(slow))
"""


def group_members(session: int) -> list[int]:
    """Processes whose environment carries this test's mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"ENCORE_TEST_MARK={session}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def prefect_home(tmp_path_factory):
    """One home for all cases: making its database takes longer than a case does."""
    return tmp_path_factory.mktemp("prefect")


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (signal.SIGTERM, 143, "Stopped by SIGTERM."),
        (signal.SIGINT, 130, "Stopped by Ctrl-C."),
        (signal.SIGKILL, -9, ""),
    ],
    ids=["SIGTERM", "Ctrl-C", "SIGKILL"],
)
def test_b8_no_process_outlives_the_flow(tmp_path, prefect_home, number, status, words):
    mark = os.getpid() * 100 + int(number)
    environment = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
    environment |= {"ENCORE_TEST_MARK": str(mark), "PREFECT_HOME": str(prefect_home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FLOW, f"store.root={tmp_path}/store", f"store.cache_dir={tmp_path}/cache"]
    log = tmp_path / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "working" in log.read_text() or process.poll() is not None, 120)
        assert "working" in log.read_text()
        process.send_signal(number)
        assert process.wait(60) == status, log.read_text()
        wait_until(lambda: not group_members(mark), 40)
    finally:
        for pid in group_members(mark):
            os.kill(pid, signal.SIGKILL)
    if words:
        last = log.read_text().strip().splitlines()[-1]
        assert last.startswith(f"encore: {words}")
        assert "Run the same command" in last

import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from tasks.stage import Preempted, StopSignal
from tasks.workers import run_jobs

ROOT = Path(__file__).parents[2]


def square(job: int, should_stop) -> tuple[int, int]:
    if job < 0:
        raise ValueError(f"{job} is negative")
    return job * job, os.getpid()


def die(job: int, should_stop) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def spin(job: Path, should_stop) -> None:
    (job / f"{os.getpid()}.pid").touch()
    while not should_stop():
        time.sleep(0.02)
    raise Preempted("asked to stop")


def orphan(folder: str) -> None:
    """A parent that will be killed while two workers are busy."""
    list(run_jobs(spin, [Path(folder)] * 2, 2, StopSignal()))


def wait_for(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize("processes", [1, 2])
def test_every_job_is_done_once(processes):
    results = list(run_jobs(square, range(5), processes, StopSignal()))
    assert sorted(value for value, _ in results) == [0, 1, 4, 9, 16]
    assert (os.getpid() in {pid for _, pid in results}) == (processes == 1)


def test_an_error_of_a_job_is_raised():
    with pytest.raises(ValueError, match="-1 is negative"):
        list(run_jobs(square, [1, -1], 2, StopSignal()))


def test_a_killed_worker_is_noticed():
    with pytest.raises(BrokenProcessPool):
        list(run_jobs(die, [1], 2, StopSignal()))


def test_a_stop_reaches_the_jobs(tmp_path):
    stop = StopSignal()
    jobs = run_jobs(spin, [tmp_path] * 4, 2, stop)
    stop.request("preempted")
    with pytest.raises(Preempted):
        next(jobs)


def test_workers_leave_when_their_parent_is_killed(tmp_path):
    program = f"from tests.tasks.test_workers import orphan\nif __name__ == '__main__': orphan({str(tmp_path)!r})"
    script = tmp_path / "parent.py"
    script.write_text(program)
    parent = subprocess.Popen([sys.executable, script], env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        wait_for(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    finally:
        parent.kill()
        parent.wait()
    workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
    wait_for(lambda: not any(alive(pid) for pid in workers), 20)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

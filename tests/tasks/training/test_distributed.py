"""Two processes train as one does, and whoever is missing is named within a set time."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jax
import pytest

from tasks.stage import InputError
from tasks.training.distributed import Team, start
from tasks.training.rendezvous import PORT, Absent, Job, meet

ROOT = Path(__file__).parents[3]
HOSTS = ("host-a", "host-b", "host-c")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_two_processes_train_the_same_model_to_the_same_numbers_and_name_the_late_one(port):
    flags = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
    if jax.__version_info__ < (0, 11):  # later versions do not know it, and abort
        flags += " --xla_cpu_use_fusion_emitters=false"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "tests/tasks/training/job_process.py", str(rank), str(port)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        (printed, errors), (_, other_errors) = [process.communicate(timeout=280) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], errors[-2000:] + other_errors[-2000:]
    found = json.loads(printed.splitlines()[-1])
    assert found["processes"] == 2
    assert found["params"] < 1e-5
    assert found["same_rows"] == [True] * 3
    assert found["late"] == "process 1 (host-b) did not arrive at step 250 within 0.5 s"


def all_meet(jobs: list[Job], seconds: float) -> list[str]:
    """What each of some processes, here threads, was told."""
    told = [""] * len(jobs)

    def one(place: int) -> None:
        try:
            meet(jobs[place], seconds)
            told[place] = "all here"
        except (Absent, InputError) as error:
            told[place] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return told


def test_b52_the_first_process_alone_names_the_missing_one(port):
    jobs = [Job(HOSTS, rank, "127.0.0.1", port) for rank in (0, 1)]
    told = all_meet(jobs, seconds=1)
    assert len(set(told)) == 1
    assert told[0].startswith(f"Absent: process 2 (host-c) did not arrive at 127.0.0.1:{port} within 1 s")


def test_b52_a_process_whose_first_one_is_missing_names_it(port):
    with pytest.raises(Absent, match=rf"process 0 \(host-a\) did not answer at 127.0.0.1:{port} within 0.3 s"):
        start(Job(HOSTS, 1, "127.0.0.1", port), seconds=0.3)


def test_all_of_them_meet_whatever_order_they_come_in(port):
    jobs = [Job(HOSTS, rank, "127.0.0.1", port) for rank in (2, 0, 1)]
    assert all_meet(jobs, seconds=20) == ["all here"] * 3


def test_a_process_of_another_job_or_with_anothers_rank_is_refused(port):
    mine = [Job(HOSTS[:2], 0, "127.0.0.1", port, key="base-1"), Job(HOSTS[:2], 1, "127.0.0.1", port, key="base-2")]
    for message in all_meet(mine, seconds=20):
        assert message.startswith("InputError:")
        assert "another job than process 0 (host-a)" in message
    twice = [Job(HOSTS, rank, "127.0.0.1", port) for rank in (0, 1, 1)]
    for message in all_meet(twice, seconds=20):
        assert "InputError: Two processes say that they are rank 1" in message


def test_strangers_on_the_port_are_ignored(port):
    def stranger() -> None:
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"rank": null}\n', b""):
            with socket.create_connection(("127.0.0.1", port)) as caller:
                caller.sendall(said)

    jobs = [Job(HOSTS[:2], rank, "127.0.0.1", port) for rank in (0, 1)]
    told: list[str] = []
    first = threading.Thread(target=lambda: told.extend(all_meet(jobs[:1], seconds=20)))
    first.start()
    for _ in range(100):
        try:
            stranger()
            break
        except ConnectionRefusedError:
            first.join(timeout=0.05)
    assert all_meet(jobs[1:], seconds=20) == ["all here"]
    first.join(timeout=20)
    assert told == ["all here"]


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, None),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, None),
        ({"ENCORE_HOSTS": "a, b", "ENCORE_RANK": "1"}, Job(("a", "b"), 1, "a", PORT, "k")),
        ({"ENCORE_HOSTS": "a:9000,b", "ENCORE_RANK": "0"}, Job(("a", "b"), 0, "a", 9000, "k")),
        ({"TPU_WORKER_HOSTNAMES": "t0,t1", "TPU_WORKER_ID": "1"}, Job(("t0", "t1"), 1, "t0", 8476, "k")),
    ],
)
def test_the_job_is_read_from_the_environment(environment, job):
    assert Job.from_environment("k", environment) == job


@pytest.mark.parametrize("rank", [None, "2", "-1", "one"])
def test_a_wrong_rank_is_one_sentence(rank):
    environment = {"ENCORE_HOSTS": "a,b"} | ({} if rank is None else {"ENCORE_RANK": rank})
    with pytest.raises(InputError, match=r"ENCORE_RANK is .* a number from 0 to 1"):
        Job.from_environment("k", environment)


def test_b51_a_single_process_starts_nothing_and_waits_for_nobody():
    team = start(None)
    assert team == Team()
    assert team.leads
    team.wait("anywhere", seconds=0)
    team.leave()
    assert not jax.distributed.is_initialized()

"""Two real hosts, here two processes: they train one model, and stop, die and continue together."""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tasks.hosts.job import Absent, Job
from tasks.store import Store
from tasks.training.distributed import Team
from tests.tasks.training.tiny import BASE_INPUTS, SFT_INPUTS

ROOT = Path(__file__).parents[3]


@dataclass
class Ended:
    """How a stage ended on one host, and what it told."""

    status: int
    events: list[dict]

    @property
    def said(self) -> str:
        return "\n".join(event["message"] for event in self.events if "message" in event)

    @property
    def steps(self) -> list[int]:
        return [event["step"] for event in self.events if "loss" in event]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(stage: str, place: Path, rank: int, fault: str, words: list[str]) -> subprocess.Popen:
    flags = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
    if jax.__version_info__ < (0, 11):  # later versions do not know it, and abort
        flags += " --xla_cpu_use_fusion_emitters=false"
    variables = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "ENCORE_RANK": str(rank)}
    command = [sys.executable, "-m", "tests.tasks.training.host", stage, str(place), fault, *words]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, text=True)


def run(stage: str, place: Path, *words: str, faults: tuple[str, str] = ("", "")) -> list[Ended]:
    """The stage on two hosts whose store is `place`; `faults`: of each host, see `host`."""
    hosts = ["hardware.hosts.names=[127.0.0.1,host-b]", f"hardware.hosts.port={free_port()}"]
    processes = [start(stage, place, rank, fault, [*hosts, *words]) for rank, fault in enumerate(faults)]
    try:
        printed = [process.communicate(timeout=280)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    events = [[json.loads(line) for line in lines.splitlines()] for lines in printed]
    return [Ended(process.returncode, told) for process, told in zip(processes, events, strict=True)]


def a_store(tmp_path: Path, tiny, roles: tuple[str, ...]) -> Path:
    """A store that holds just these artifacts."""
    for role in roles:
        shutil.copytree(tiny[0].root.directory / role, tmp_path / "store" / role)
    return tmp_path / "store"


def only(place: Path, stage: str):
    """The one artifact of a stage."""
    return Store(place, cache_dir=place.parent / "cache").artifact(stage, next((place / stage).iterdir()).name)


def assert_same_model(made, expected) -> None:
    for name in ("weights.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(made.path(name)), load_file(expected.path(name))
        assert ours.keys() == theirs.keys()
        for tensor, values in theirs.items():
            np.testing.assert_allclose(ours[tensor], values, rtol=0, atol=1e-5, err_msg=tensor)


@pytest.mark.timeout(900)
def test_two_hosts_train_what_one_does_though_each_of_them_is_stopped_or_dies(tiny, tiny_base, tmp_path):
    """Checkpoints come every four steps; every start is the same command."""
    place = a_store(tmp_path, tiny, BASE_INPUTS)

    stopped = run("base", place, faults=("", "TERM:5"))
    assert [host.status for host in stopped] == [75, 75], stopped
    assert stopped[0].steps == stopped[1].steps
    step = stopped[0].steps[-1]
    for host in stopped:
        assert f"Stopped after step {step}; the same command continues from step {step}." in host.said
    assert not list(place.glob("base/*/manifest.json"))

    died = run("base", place, faults=("", "KILL:14"))
    assert f"Continuing from step {step} of 24." in died[0].said
    assert f"Continuing from step {step} of 24." in died[1].said
    assert died[0].status == 75
    assert "process 1 (host-b) is gone" in died[0].said

    leaderless = run("base", place, faults=("KILL:19", ""))
    assert leaderless[1].status == 75
    assert "process 0 (127.0.0.1) is gone" in leaderless[1].said
    assert leaderless[0].steps[0] > 12

    finished = run("base", place)
    assert [host.status for host in finished] == [0, 0], finished
    assert finished[0].steps[0] > 16
    made = only(place, "base")
    assert made.manifest.metrics["devices"] == 2
    assert made.manifest.attempts == 4
    assert_same_model(made, tiny_base)
    assert not (tmp_path / "cache-1" / "work").exists()


@pytest.mark.timeout(400)
def test_two_hosts_tune_what_one_does(tiny, tiny_base, tiny_sft, tmp_path):
    place = a_store(tmp_path, tiny, SFT_INPUTS[1:])
    shutil.copytree(Path(tiny_base.path("model.json")).parent, place / "base" / tiny_base.key)
    assert [host.status for host in run("sft", place)] == [0, 0]
    assert_same_model(only(place, "sft"), tiny_sft)


@pytest.mark.timeout(300)
def test_a_host_that_does_not_come_is_named(tiny, tmp_path):
    place = a_store(tmp_path, tiny, BASE_INPUTS)
    words = ["hardware.hosts.names=[127.0.0.1,host-b]", f"hardware.hosts.port={free_port()}"]
    process = start("base", place, 0, "", [*words, "hardware.hosts.start_minutes=0.01"])
    printed, _ = process.communicate(timeout=250)
    assert process.returncode == 75, printed
    assert "process 1 (host-b) did not arrive at 127.0.0.1:" in printed.splitlines()[-1]


class Coordinator:
    """JAX's key-value store, in which the second of two processes has said nothing."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}

    def key_value_set(self, key: str, value: str) -> None:
        self.said[key] = value

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        if key not in self.said:
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {key} within {milliseconds} ms")
        return self.said[key]


def test_b31_a_host_that_is_late_for_a_step_is_named():
    team = Team.__new__(Team)
    team.job, team._client = Job(("host-a", "host-b"), 0, "127.0.0.1"), Coordinator()
    with pytest.raises(Absent, match=r"process 1 \(host-b\) did not arrive at step 250 within 0.5 s"):
        team.wait("step 250", seconds=0.5)
    team._client.key_value_set("encore/step 250/1", "here")
    team.wait("step 250", seconds=0.5)

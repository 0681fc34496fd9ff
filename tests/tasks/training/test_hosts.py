"""Two real hosts, here two processes: they train one model, and stop, die and continue together."""

import json
import os
import re
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
from tasks.stage import InputError, StopSignal
from tasks.store import Store, attempt, run_inline
from tasks.store.events import Events
from tasks.training.distributed import Alone, Team, check_order, together
from tests.tasks.training.tiny import BASE_INPUTS, config

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


def saved(place: Path) -> list[int]:
    """Steps of the checkpoints that count."""
    return sorted(int(path.parent.name.partition("~")[0]) for path in place.glob("base/*/checkpoints/*/commit.json"))


def only(place: Path, stage: str):
    """The one artifact of a stage."""
    return Store(place, cache_dir=place.parent / "cache").artifact(stage, next((place / stage).iterdir()).name)


def assert_same_model(made, expected) -> None:
    """Equal to rounding, ‖a − b‖ / ‖b‖ of each tensor: two devices add a batch in another order than one."""
    for name in ("weights.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(made.path(name)), load_file(expected.path(name))
        assert ours.keys() == theirs.keys()
        for tensor, values in theirs.items():
            distance = np.linalg.norm(ours[tensor] - values) / max(1e-30, np.linalg.norm(values))
            assert distance <= (1e-5 if name.startswith("weights") else 1e-4), tensor


@pytest.mark.timeout(900)
def test_two_hosts_train_what_one_does_though_each_of_them_is_stopped_or_dies(tiny, tiny_base, tmp_path):
    """Every start is the same command. A checkpoint is due every four steps; each time a part of the run is lost."""
    place = tmp_path / "store"
    for role in ("shards", "tokenizer"):
        shutil.copytree(tiny[0].root.directory / role, place / role)
    quick = ("base.eval_every=24", "base.sample_every=100")

    stopped = run("base", place, *quick, faults=("", "TERM:5"))
    assert [host.status for host in stopped] == [75, 75], stopped
    step = stopped[0].steps[-1]
    for host in stopped:
        assert host.steps == list(range(1, step + 1))
        assert f"Stopped after step {step}; the same command continues from step {step}." in host.said
    assert saved(place)[-1] == step
    assert not list(place.glob("base/*/manifest.json"))

    died = run("base", place, *quick, faults=("", "KILL:14"))
    for host in died:
        assert f"Continuing from step {step} of 24." in host.said
    assert died[0].status == 75
    assert "process 1 (host-b) is gone" in died[0].said

    step = saved(place)[-1]
    leaderless = run("base", place, *quick, faults=("KILL:19", ""))
    assert leaderless[0].steps[0] == step + 1
    assert leaderless[1].status == 75
    assert "process 0 (127.0.0.1) is gone" in leaderless[1].said

    step = saved(place)[-1]
    finished = run("base,conversations,sft", place, *quick, faults=("LATE:conversations", ""))
    assert [host.status for host in finished] == [0, 0], finished
    assert finished[0].steps == [*range(step + 1, 25), *range(1, 7)]
    assert re.search(r"waiting for conversations/\w+, which process 0 \(127.0.0.1\) makes", finished[1].said)

    base, conversations, sft = (only(place, stage) for stage in ("base", "conversations", "sft"))
    assert base.manifest.metrics["devices"] == sft.manifest.metrics["devices"] == 2
    assert base.manifest.attempts == 4
    assert_same_model(base, tiny_base)
    inputs = {"base": base, "conversations": conversations, "tokenizer": tiny[1]["tokenizer"]}
    assert_same_model(sft, run_inline("sft", config(*quick), inputs))


def test_a_first_host_that_is_left_alone_names_the_missing_one_and_leaves_nothing(tiny, store):
    settings = config("hardware.hosts.names=[127.0.0.1,host-b]", "hardware.hosts.start_minutes=0.005")
    inputs = {role: tiny[1][role] for role in BASE_INPUTS}
    job = Job(("127.0.0.1", "host-b"), 0, "127.0.0.1", free_port())
    with pytest.raises(Absent, match=r"process 1 \(host-b\) did not arrive at 127.0.0.1:\d+ within 0.3 s"):
        attempt.make("base", settings, inputs, store, events=Events(print), stop=StopSignal(), job=job)
    assert not list(store.root.directory.glob("base/*/manifest.json"))
    assert not jax.distributed.is_initialized()


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
    team.job, team._client = Job(("host-a", "host-b"), 0, "127.0.0.1", 8476), Coordinator()
    with pytest.raises(Absent, match=r"process 1 \(host-b\) did not arrive at step 250 within 0.5 s"):
        team.wait("step 250", seconds=0.5)
    team._client.key_value_set("encore/step 250/1", "here")
    team.wait("step 250", seconds=0.5)


@pytest.mark.parametrize(("process", "count"), [(1, 2), (0, 4)])
def test_hosts_that_are_not_counted_as_jax_counts_them_are_refused(process, count):
    job = Job(("host-a", "host-b"), 0, "host-a", 8476)
    check_order(job, 0, 2)
    with pytest.raises(InputError, match=rf"process 0 \(host-a\) of 2 is process {process} of {count} to JAX"):
        check_order(job, process, count)


def test_b51_a_single_process_starts_nothing_and_waits_for_nobody():
    with together(None) as team:
        assert isinstance(team, Alone)
        assert team.leads
        team.wait("anywhere")
        assert team.ask(lambda: True, lambda: False)() == [True, False]
    assert not jax.distributed.is_initialized()

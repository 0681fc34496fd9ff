"""Base: what it leaves, and that being stopped or killed changes none of it."""

import json
import os
import random
import re
import shutil
import signal
import threading
from dataclasses import dataclass, field
from functools import partial

import jax
import pytest

from conf.errors import ConfigError
from model.step import make_train_step
from tasks.base import plan_run
from tasks.stage import InputError, Preempted, StopSignal
from tasks.store import Artifact, StageFailed, StagePreempted, Store, parent, run_inline, run_stage
from tasks.training.weights_io import load_model
from tests.tasks.training.tiny import BASE_INPUTS, config


def lines(artifact):
    return [json.loads(line) for line in artifact.path("history.jsonl").read_text().splitlines()]


def same_bits(one, other):
    """Whether two models, their optimizers and their evaluations are equal bit for bit."""
    files = ("weights.safetensors", "optimizer.safetensors", "model.json", "samples.json")
    timeless = [[{k: v for k, v in line.items() if k != "tokens_per_s"} for line in lines(a)] for a in (one, other)]
    return timeless[0] == timeless[1] and all(
        one.path(name).read_bytes() == other.path(name).read_bytes() for name in files
    )


@pytest.fixture
def inputs(tiny):
    return {role: tiny[1][role] for role in BASE_INPUTS}


def test_base_leaves_a_model_its_record_and_its_figures(tiny_base):
    assert tiny_base.names() == [
        "history.jsonl", "model.json", "optimizer.safetensors", "samples.json", "weights.safetensors"
    ]  # fmt: skip
    params, shape = load_model(tiny_base)
    assert (shape.n_layer, shape.n_embd, shape.seq_len) == (1, 32, 32)
    metrics = tiny_base.manifest.metrics
    assert metrics["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert metrics["tokens"] == 24 * 256
    assert (metrics["grad_accum_steps"], metrics["micro_batch_rows"]) == (2, 4)

    history = lines(tiny_base)
    assert [line["step"] for line in history] == list(range(25))
    assert [line["step"] for line in history if "val_bpb" in line] == [0, 5, 10, 15, 20, 24]
    assert history[24]["val_bpb"] == metrics["val_bpb"]
    assert history[24]["val_bpb"] < history[0]["val_bpb"]
    assert history[24]["tokens"] == metrics["tokens"]
    samples = json.loads(tiny_base.path("samples.json").read_text())
    assert [sample["step"] for sample in samples] == [8, 16, 24]
    assert all(text["prompt"].startswith("<|bos|>") for sample in samples for text in sample["texts"])


MOMENTS = {
    "between checkpoints": lambda e: e.get("step") == 6,
    "at an evaluation, which is then made up for": lambda e: e.get("step") == 10 and "loss" in e,
    "at a sample and a checkpoint": lambda e: e.get("step") == 16 and "loss" in e,
    "after the last step": lambda e: e.get("step") == 24 and "loss" in e,
}


@dataclass
class Interrupted:
    """A run that was stopped at each of MOMENTS and then finished."""

    artifact: Artifact
    stopped_after: list[int] = field(default_factory=list)  # steps, by what was logged
    continued_from: list[int] = field(default_factory=list)
    positions: list[dict] = field(default_factory=list)  # of every checkpoint there was after a stop
    programs: list = field(default_factory=list)  # the training step of each attempt


@pytest.fixture(scope="module")
def interrupted(tiny, tmp_path_factory):
    directory = tmp_path_factory.mktemp("interrupted")
    store = Store(directory / "store", cache_dir=directory / "cache")
    inputs = {role: tiny[1][role] for role in BASE_INPUTS}
    seen = Interrupted(None)

    def making(*args):
        seen.programs.append(make_train_step(*args))
        return seen.programs[-1]

    def listen(event, stop, happens):
        line = event.get("message", "")
        if found := re.match(r"Stopped after step (\d+);", line):
            seen.stopped_after.append(int(found[1]))
        if found := re.match(r"Continuing from step (\d+) of 24", line):
            seen.continued_from.append(int(found[1]))
        if happens(event):
            stop.request("SIGTERM")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.training.loop.make_train_step", making)
        for happens in MOMENTS.values():
            stop = StopSignal()
            with pytest.raises(Preempted, match="SIGTERM"):
                run_inline(
                    "base", config(), inputs, store, stop=stop, on_event=partial(listen, stop=stop, happens=happens)
                )
            for marker in (directory / "store" / "base").rglob("commit.json"):
                seen.positions.append(json.loads(marker.read_text())["meta"]["position"])
        never = partial(listen, stop=StopSignal(), happens=lambda event: False)
        seen.artifact = run_inline("base", config(), inputs, store, on_event=never)
    return seen


def test_b30_a_run_stopped_at_any_moment_ends_with_the_bits_of_one_that_was_not(interrupted, tiny_base):
    assert interrupted.artifact.manifest.attempts == len(MOMENTS) + 1
    assert same_bits(interrupted.artifact, tiny_base)


def test_a_stop_ends_the_step_that_runs_and_the_next_attempt_continues_there(interrupted):
    assert interrupted.stopped_after[0] in (6, 7)
    assert interrupted.stopped_after[1:] == [10, 16, 24]
    assert interrupted.continued_from == interrupted.stopped_after


def test_b32_checkpoints_lie_between_optimizer_steps_never_inside_an_accumulation(interrupted, tiny_base):
    assert tiny_base.manifest.metrics["grad_accum_steps"] == 2
    assert len(interrupted.positions) >= 4
    for position in interrupted.positions:
        assert position["rows"] == 8 * position["step"]
        assert position["tokens"] == 256 * position["step"]


def test_an_attempt_compiles_one_training_step_whether_its_state_is_new_or_restored(interrupted):
    assert [program._cache_size() for program in interrupted.programs] == [1, 1, 1, 1, 0]  # the last only writes


def test_killing_the_child_at_random_moments_changes_no_bit(tiny, tiny_base, tmp_path):
    """SIGKILL and SIGTERM to a real process, each at a moment of its own."""
    shutil.copytree(tiny[0].root.directory, tmp_path / "store")
    store = Store(tmp_path / "store", cache_dir=tmp_path / "cache", lease_seconds=2)
    inputs = {role: store.artifact(tiny[1][role].stage, tiny[1][role].key) for role in BASE_INPUTS}
    chance = random.Random(os.getpid())
    ended = []
    for number in (signal.SIGKILL, signal.SIGTERM):
        countdown, delay = chance.randint(1, 8), chance.uniform(0, 0.1)

        def listen(event, number=number, left=list(range(countdown)), delay=delay):  # noqa: B006
            if event["kind"] == "progress" and (not left or left.pop() is None):
                for child in list(parent._running):
                    threading.Timer(delay, os.kill, (child.pid, number)).start()

        try:
            finished = run_stage("base", config(), inputs, store, on_event=listen)
            break
        except (StageFailed, StagePreempted) as error:
            ended.append(type(error))
    else:
        finished = run_stage("base", config(), inputs, store, on_event=lambda event: None)
    assert ended == [StageFailed, StagePreempted]
    assert same_bits(finished, tiny_base)


def test_a_run_longer_than_its_data_stops_before_anything_is_compiled(inputs, store, monkeypatch):
    def compiled(*_args):
        raise AssertionError("compiled")

    monkeypatch.setattr("tasks.training.loop.make_train_step", compiled)
    with pytest.raises(InputError, match=r"needs 800 rows of 32 tokens and .* more shards .*data.allow_repeat=true"):
        run_inline("base", config("base.steps=100"), inputs, store)


def test_b27_allow_repeat_lets_a_run_read_rows_again(inputs):
    plan = plan_run(config("base.steps=60", "data.allow_repeat=true"), inputs)
    assert plan.steps * plan.loader.batch_rows > 1.5 * len(plan.loader.rows)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["base.total_batch_tokens=250"], "total_batch_tokens=250 is not a multiple of seq_len=32: take 224 or 256"),
        (["compute.mesh.tensor=3"], "there are 1 devices"),
    ],
)
def test_batches_and_meshes_that_do_not_fit_are_one_sentence(inputs, store, words, sentence):
    with pytest.raises(ConfigError, match=sentence):
        run_inline("base", config(*words), inputs, store)

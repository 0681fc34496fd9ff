"""When a checkpoint is due, what is kept, and what becomes of a save that fails."""

import errno
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.store.lease import LeaseLost
from tasks.training.checkpoints import SavesFailing
from tests.tasks.training.checkpointing import Run, like, position, state_at


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_a_restored_state_is_the_saved_one_bit_for_bit(run, tmp_path):
    record = tmp_path / "history.jsonl"
    record.write_text("one line\n")
    run.checkpoints.save(state_at(7), position(7, 1.25), [record])
    assert run.checkpoints.finish(60)
    run.attempt.end()

    later = Run(tmp_path)
    state, where = later.restore()
    assert where == position(7, 1.25)
    assert jax.tree.structure(state) == jax.tree.structure(state_at(7))
    for got, expected in zip(jax.tree.leaves(state), jax.tree.leaves(state_at(7)), strict=True):
        assert got.dtype == expected.dtype
        assert np.array_equal(got, expected)
    assert (later.records / "history.jsonl").read_text() == "one line\n"


def test_nothing_saved_means_a_start_from_step_0(run):
    assert run.restore() is None


def test_the_saved_state_is_that_of_the_call_though_its_buffers_are_donated(run):
    advance = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    state = {"wte": jnp.arange(300_000, dtype=jnp.float32)}
    shapes = like(state)
    run.checkpoints.save(state, position(1), [])
    for _ in range(5):
        state = advance(state)
    assert run.checkpoints.finish(60)
    restored, _ = run.checkpoints.restore(shapes, run.records)
    assert np.array_equal(restored["wte"], np.arange(300_000, dtype=np.float32))


def test_due_every_half_of_n_steps_or_m_minutes_and_once_a_step(run):
    due = run.checkpoints.due
    assert [step for step in range(31) if due(step) and run.save(step)] == [5, 10, 15, 20, 25, 30]
    run.clock.forward(minutes=16)
    assert due(33)
    assert run.save(33)
    assert not due(33)
    assert not due(34)


def slow_uploads(run, monkeypatch) -> threading.Event:
    """Uploads that wait until the event is set."""
    release, genuine = threading.Event(), run.attempt.root.put
    monkeypatch.setattr(run.attempt.root, "put", lambda *args: release.wait(60) and genuine(*args))
    return release


@pytest.mark.parametrize("every_steps", [2, 5, 10])
def test_a_kill_costs_at_most_n_steps_however_long_a_save_takes(tmp_path, monkeypatch, every_steps):
    """Every save is complete only when training has waited for it: the latest that it can be."""
    run = Run(tmp_path, every_steps=every_steps)
    release = slow_uploads(run, monkeypatch)
    waiting = run.checkpoints.finish
    monkeypatch.setattr(run.checkpoints, "finish", lambda seconds: release.set() or waiting(seconds))
    worst = 0
    for step in range(1, 40):
        worst = max(worst, step - (run.checkpoints.last_saved or 0))
        if run.checkpoints.due(step):
            run.checkpoints.save(state_at(step), position(step), [])
            release.clear()
    assert worst == every_steps // 2 * 2
    release.set()
    assert waiting(60)


def test_a_save_that_hung_is_followed_by_the_next_at_once(run, monkeypatch):
    monkeypatch.setattr("tasks.training.checkpoints.HOLD_SECONDS", 0.05)
    release = slow_uploads(run, monkeypatch)
    run.checkpoints.save(state_at(10), position(10), [])
    assert [step for step in range(11, 16) if run.checkpoints.due(step)] == [15]
    run.checkpoints.save(state_at(15), position(15), [])  # training has waited, in vain
    assert not any(run.checkpoints.due(step) for step in range(16, 34))
    release.set()
    assert run.checkpoints.finish(60)
    assert run.checkpoints.due(34)  # for 15 and later ones, which came by meanwhile
    assert run.save(34)
    assert [step for step in range(34, 41) if run.checkpoints.due(step) and run.save(step)] == [35, 40]


def test_the_newest_and_the_best_are_kept(run):
    for step, bpb in ((10, 1.5), (20, 0.9), (30, 1.2), (40, 1.1), (50, None)):
        assert run.save(step, bpb)
    assert run.steps() == [20, 40, 50]
    local = (run.attempt.out.path / "checkpoints").iterdir()
    assert sorted(int(path.name) for path in local) == [20, 40, 50]


def test_the_marker_says_what_the_checkpoint_holds(run):
    assert run.save(10, 1.5)
    (mirrored,) = run.attempt.out.remote_directories()
    assert mirrored.meta["position"] == {
        "step": 10, "rows": 20, "tokens": 60, "wall_seconds": 1.5, "val_bpb": 1.5
    }  # fmt: skip
    assert {name: entry["dtype"] for name, entry in mirrored.meta["tensors"].items()} == {
        "params.wte": "float32", "params.gate": "bfloat16", "step": "int32"
    }  # fmt: skip


def full_disk(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_shown_and_retried_and_training_goes_on(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run.attempt.root, "put", full_disk)
        assert not run.save(10)
    assert "00000010 failed (OSError: [Errno 28] No space left on device)" in run.lines[0]
    assert not (run.attempt.out.path / "checkpoints" / "00000010").exists()  # it gives the room back
    assert not run.checkpoints.due(11)  # not at once: pauses grow
    run.clock.forward(minutes=0.1)
    assert run.checkpoints.due(12)
    assert run.save(12)
    assert run.steps() == [12]


def test_saves_that_fail_for_too_long_end_the_run(run, monkeypatch):
    monkeypatch.setattr(run.attempt.root, "put", full_disk)
    assert not run.save(10)
    run.clock.forward(minutes=59)
    assert run.checkpoints.due(11)
    assert not run.save(11)
    run.clock.forward(minutes=2)
    with pytest.raises(SavesFailing, match=r"for 61 minutes \(.*=60\).*run the same command"):
        run.checkpoints.due(12)


def test_the_age_of_a_failure_counts_from_the_last_good_save(run, monkeypatch):
    run.clock.forward(minutes=50)
    assert run.save(10)
    monkeypatch.setattr(run.attempt.root, "put", full_disk)
    run.clock.forward(minutes=50)
    assert not run.save(20)
    assert run.checkpoints.due(21) is False  # 50 minutes without a good save, 60 are allowed


def test_a_save_that_hangs_is_waited_for_once(run, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(run.attempt.root, "put", lambda *args: release.wait(60))
    monkeypatch.setattr("tasks.training.checkpoints.HOLD_SECONDS", 0.05)
    run.checkpoints.save(state_at(10), position(10), [])
    assert run.checkpoints.finish(0.05) is False
    run.checkpoints.save(state_at(11), position(11), [])
    assert "Step 11 is not saved: step 10 is still being written" in run.lines[0]
    run.clock.forward(minutes=61)
    with pytest.raises(SavesFailing):
        run.checkpoints.due(20)
    release.set()
    run.checkpoints.finish(60)


def test_a_run_that_lost_its_key_stops_instead_of_retrying(run, tmp_path):
    run.attempt.end()
    Run(tmp_path)  # the next owner
    assert not run.save(10) or run.steps() == []
    with pytest.raises(LeaseLost):
        run.checkpoints.due(11)

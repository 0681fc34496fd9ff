"""Wrong rows and numbers that are not finite: found at the step where they happen, before anything is saved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.checksum import row_checksums
from model.step import make_train_step
from tasks import base
from tasks.training.guard import NotFinite, WrongRows, check
from tasks.training.loader import Batch
from tasks.training.loop import Loop
from tests.tasks.training.attempts import Attempt
from tests.tasks.training.tiny import BASE_INPUTS, config


@pytest.fixture
def plan(tiny):
    return base.plan_run(config(), {role: tiny[1][role] for role in BASE_INPUTS})


def metrics(batch, rows=None, loss=2.0):
    """What a step that has read `rows` reports."""
    return {
        "row_checksums": jnp.asarray(row_checksums(batch.rows if rows is None else rows)),
        "loss": jnp.float32(loss),
    }


def test_a_step_on_its_own_rows_passes(plan):
    batch = plan.loader.batch(3)
    check(batch, metrics(batch), plan.loader.rows, None)


def aliased(rows):
    """Every micro-batch is the last one: the buffer was filled again before the device had read it."""
    return np.broadcast_to(rows[-1], rows.shape)


def read_twice(rows):
    wrong = rows.copy()
    wrong[0, 1] = wrong[0, 0]
    return wrong


def one_token_flipped(rows):
    wrong = rows.copy()
    wrong[1, 2, 5] ^= 1
    return wrong


def two_tokens_swapped(rows):
    wrong = rows.copy()
    place = next(i for i in range(32) if wrong[0, 0, i] != wrong[0, 0, i + 1])
    wrong[0, 0, [place, place + 1]] = wrong[0, 0, [place + 1, place]]
    return wrong


@pytest.mark.parametrize(
    ("fault", "places"),
    [
        (aliased, [(0, row) for row in range(4)]),
        (read_twice, [(0, 1)]),
        (one_token_flipped, [(1, 2)]),
        (two_tokens_swapped, [(0, 0)]),
    ],
)
def test_wrong_rows_are_named_by_shard_and_place(plan, fault, places):
    batch = plan.loader.batch(3)
    with pytest.raises(WrongRows) as caught:
        check(batch, metrics(batch, fault(batch.rows)), plan.loader.rows, 2)
    sentence = str(caught.value)
    assert f"in {len(places)} of 8 rows" in sentence
    for place in places:
        assert plan.loader.rows.name(int(batch.indices[place])) in sentence
    assert "train_00000.rows.npy row" in sentence
    assert "the last checkpoint is of step 2" in sentence


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_with_step_and_checkpoint(plan, loss):
    batch = plan.loader.batch(3)
    with pytest.raises(NotFinite, match=r"loss of step 3 is (nan|inf) \(there is no checkpoint yet"):
        check(batch, metrics(batch, loss=loss), plan.loader.rows, None)


def test_the_loop_stops_at_the_first_aliased_batch_and_saves_nothing_of_it(plan, tmp_path, monkeypatch):
    """The real step reports what it has read, one step late, and still before a checkpoint is written."""
    put = type(plan.placement).put_rows
    monkeypatch.setattr(type(plan.placement), "put_rows", lambda self, rows: put(self, broken(rows)))
    fed = 0

    def broken(rows):
        nonlocal fed
        fed += len(rows) > 1  # validation has one micro-batch
        return np.ascontiguousarray(aliased(rows)) if fed == 4 else rows

    attempt = Attempt(tmp_path)
    with pytest.raises(WrongRows, match="Step 3 trained on other tokens"):
        Loop(plan, attempt.out).run(lambda: base.start(plan, 0))
    saved = {item.meta["position"]["step"] for item in attempt.out.remote_directories()}
    assert saved <= {2}  # a save is due after 2 steps and after 4


def test_b44_a_batch_without_targets_has_loss_0_and_moves_nothing_to_nan(plan):
    state = base.start(plan, 0)
    rows = Batch(0, np.full((2, 4, 33), ~5, np.int32), np.zeros((2, 4)), np.zeros((2, 4))).rows
    step = make_train_step(plan.config, plan.compute, plan.training)
    state, found = step(state, plan.placement.put_rows(rows))
    assert float(found["loss"]) == 0
    assert int(found["n_targets"]) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))

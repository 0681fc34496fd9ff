"""One compiled step: compiled once, donated, the same however its rows are cut, honest about the rows it used."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.checksum import mismatches, row_checksums
from model.recipe import Compute
from model.step import Training, TrainState, init_state, inputs_and_targets, make_train_step
from tests.model.engines import random_params, recipe, tiny

CONFIG = tiny("head", n_layer=3, seq_len=16, window_pattern="SL")
TRAINING = Training(iterations=100, schedule=replace(recipe("head").schedule, warmup_steps=4), weight_decay=0.1)
ACCUM, ROWS = 2, 3


@pytest.fixture(scope="module")
def train_step():
    return make_train_step(CONFIG, Compute(attention="xla"), TRAINING)


@pytest.fixture
def state() -> TrainState:
    return init_state(CONFIG, TRAINING, seed=0)


def rows(step: int = 0, shape: tuple[int, int] = (ACCUM, ROWS)) -> np.ndarray:
    """int32 [grad_accum_steps, rows, seq_len + 1]; the later a row, the fewer of its words are targets."""
    rng = np.random.default_rng(step)
    words = rng.integers(0, CONFIG.vocab_size, (shape[0] * shape[1], CONFIG.seq_len + 1), dtype=np.int32)
    masked = rng.random(words.shape) < np.linspace(0, 0.9, len(words))[:, None]
    return np.where(masked, ~words, words).reshape(*shape, -1)


def test_rows_become_inputs_and_targets() -> None:
    tokens, targets = inputs_and_targets(jnp.array([[5, ~6, 7, ~0, 1]], jnp.int32))
    assert tokens.tolist() == [[5, 6, 7, 0]]
    assert targets.tolist() == [[-1, 7, -1, 1]]


def test_one_program_for_twenty_steps_and_a_resume(caplog: pytest.LogCaptureFixture) -> None:
    train_step = make_train_step(CONFIG, Compute(attention="xla"), TRAINING)
    straight, resumed = (init_state(CONFIG, TRAINING, seed=0) for _ in range(2))
    with jax.log_compiles():
        for i in range(20):
            straight, _ = train_step(straight, jax.device_put(rows(i)))
        for i in range(20):
            if i == 10:  # what a checkpoint does
                resumed = jax.device_put(jax.tree.map(np.asarray, resumed))
            resumed, _ = train_step(resumed, jnp.asarray(rows(i)))
    compiled = [r for r in caplog.records if "Finished XLA compilation of jit(train_step)" in r.getMessage()]
    assert len(compiled) == 1
    assert int(straight.step) == 20
    for a, b in zip(*map(jax.tree.leaves, (straight, resumed)), strict=True):
        assert np.array_equal(a, b)


def test_state_is_donated(train_step, state: TrainState) -> None:
    new, _ = train_step(state, rows())
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state.params, state.opt_state)) if leaf.size > 1)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(new))


def test_the_cut_into_micro_batches_does_not_matter() -> None:
    whole = rows(shape=(1, 6))
    start = init_state(CONFIG, TRAINING, seed=0)._replace(params=random_params(CONFIG))
    found = []
    for shape in [(1, 6), (3, 2)]:
        train_step = make_train_step(CONFIG, Compute(attention="xla"), TRAINING)
        found.append(train_step(jax.tree.map(jnp.array, start), whole.reshape(*shape, -1)))
    (one, expected), (other, metrics) = found
    assert int(metrics["n_targets"]) == int(expected["n_targets"]) == (whole[..., 1:] >= 0).sum()
    assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-6)
    assert float(metrics["grad_norm"]) == pytest.approx(float(expected["grad_norm"]), rel=1e-5)
    for a, b in zip(*map(jax.tree.leaves, (other.params, one.params)), strict=True):
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


def test_it_learns(train_step, state: TrainState) -> None:
    losses = []
    for _ in range(30):
        state, metrics = train_step(state, rows())
        losses.append(float(metrics["loss"]))
    assert losses[0] == pytest.approx(np.log(CONFIG.vocab_size), abs=0.1)
    assert losses[-1] < 0.5 * losses[0]


def test_b44_a_step_without_targets(train_step, state: TrainState) -> None:
    new, metrics = train_step(state, ~np.abs(rows()))
    assert [float(metrics[name]) for name in ("loss", "n_targets", "grad_norm")] == [0, 0, 0]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new))


def test_checksums_are_those_of_the_rows(train_step, state: TrainState) -> None:
    _, metrics = train_step(state, rows())
    assert metrics["row_checksums"].dtype == jnp.uint32
    assert mismatches(row_checksums(rows()), metrics["row_checksums"]).size == 0


def test_b26_a_buffer_that_is_filled_again_is_caught_at_the_first_step(train_step, state: TrainState) -> None:
    """The loader hands out one buffer for every micro-batch: all of them are the last one."""
    good, buffer, handed_out = rows(), np.empty((ROWS, CONFIG.seq_len + 1), np.int32), []
    for micro_batch in good:
        buffer[...] = micro_batch
        handed_out.append(np.asarray(buffer))
    _, metrics = train_step(state, np.stack(handed_out))
    assert mismatches(row_checksums(good), metrics["row_checksums"]).tolist() == [[0, 0], [0, 1], [0, 2]]


def test_a_row_read_twice_and_a_flipped_token_are_caught(train_step) -> None:
    twice, flipped = rows(), rows()
    twice[1, 2] = twice[1, 1]
    flipped[0, 1, 7] ^= 1
    for wrong, where in [(twice, [1, 2]), (flipped, [0, 1])]:
        _, metrics = train_step(init_state(CONFIG, TRAINING, seed=0), wrong)
        assert mismatches(row_checksums(rows()), metrics["row_checksums"]).tolist() == [where]

"""Precision is what the config says: float32 masters and sums, bfloat16 products, loss curves that stay together."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention import attend_xla
from model.gpt import rms_norm
from model.recipe import Compute
from model.step import Training, init_state, make_train_step
from tests.model.engines import recipe, tiny

STEPS, ROWS, SEQ = 50, 4, 64
CONFIG = tiny("head", vocab_size=256, seq_len=SEQ, n_layer=4, n_head=2, n_kv_head=2, n_embd=64)
TRAINING = Training(iterations=STEPS, schedule=replace(recipe("head").schedule, warmup_steps=5), weight_decay=0.1)
BF16 = Compute(compute_dtype="bfloat16", polar_dtype="bfloat16", attention="xla")


def losses(compute: Compute, batches: np.ndarray) -> np.ndarray:
    train_step, state, found = make_train_step(CONFIG, compute, TRAINING), init_state(CONFIG, TRAINING, seed=0), []
    for rows in batches:
        state, metrics = train_step(state, rows)
        found.append(float(metrics["loss"]))
    for leaf in jax.tree.leaves((state.params, state.opt_state)):
        assert leaf.dtype in (jnp.float32, jnp.int32)
    return np.array(found)


def test_bfloat16_follows_float32_on_real_text(shared_data: Path) -> None:
    """A small d4 on the bytes of real documents, the same rows in the same order; curves side by side."""
    file = min((shared_data / "data/pretrain_text").glob("shard_*.jsonl.gz"))
    needed, text = STEPS * ROWS * (SEQ + 1), b""
    with gzip.open(file) as lines:
        while len(text) < needed:
            text += json.loads(next(lines))["text"].encode()
    batches = np.frombuffer(text[:needed], np.uint8).astype(np.int32).reshape(STEPS, 1, ROWS, SEQ + 1)
    exact, rough = losses(Compute(attention="xla"), batches), losses(BF16, batches)
    print(
        "\n".join(
            f"step {i:2}  float32 {a:.4f}  bfloat16 {b:.4f}" for i, (a, b) in enumerate(zip(exact, rough, strict=True))
        )
    )
    trends = [np.convolve(curve, np.full(5, 0.2), "valid") for curve in (exact, rough)]
    assert trends[0][-1] < trends[0][0] - 1.5
    assert np.abs(trends[1] / trends[0] - 1).max() <= 3e-2
    assert not np.array_equal(exact, rough)


def test_products_are_bfloat16() -> None:
    """Reads the traced step. The float32 products are XLA attention's, from the gradient of its float32 scores."""
    state = jax.eval_shape(lambda: init_state(CONFIG, TRAINING, 0))
    rows = jax.ShapeDtypeStruct((1, ROWS, SEQ + 1), jnp.int32)
    text = make_train_step(CONFIG, BF16, TRAINING).lower(state, rows).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) > 100
    assert len([line for line in products if "bf16" not in line]) == 2 * CONFIG.n_layer


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_norm_and_softmax_are_computed_in_float32(scale: float) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(scale * rng.normal(size=(4, 512)), jnp.bfloat16)
    wide = np.asarray(x, np.float64)
    exact = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + np.finfo(np.float32).eps)
    assert np.abs(np.asarray(rms_norm(x), np.float64) / exact - 1).max() < 2**-8  # one rounding to bfloat16
    q, k = (jnp.asarray(rng.normal(size=(1, 300, 1, 16)), jnp.bfloat16) for _ in range(2))
    ones = jnp.ones((1, 300, 1, 16), jnp.bfloat16)  # weights that add up to one
    assert np.abs(np.asarray(attend_xla(q, k, ones, window=300), np.float64) - 1).max() < 2**-7

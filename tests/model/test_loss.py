"""The chunked cross entropy: any chunk, nothing without targets, never the whole logits."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.gpt import init
from model.loss import loss_sum, token_losses
from model.recipe import Compute
from tests.model.engines import random_params, tiny
from tests.model.test_gpt import batch

CONFIG = tiny("head", vocab_size=100, n_layer=3)
ROWS, SEQ = 4, 24


def compute(chunk: int = 256, **choices: str) -> Compute:
    return Compute(attention="xla", loss_chunk=chunk, **choices)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [1, 7, 96, 1000])
def test_the_chunk_does_not_matter(chunk: int) -> None:
    params, (tokens, targets) = random_params(CONFIG), batch(100, (ROWS, SEQ))
    whole, part = (token_losses(params, tokens, targets, CONFIG, compute(c)) for c in (96, chunk))
    assert np.allclose(whole, part, rtol=1e-6, atol=1e-6)
    assert not np.any(np.asarray(part)[targets == -1])
    total, n_targets = loss_sum(params, tokens, targets, CONFIG, compute(chunk))
    assert float(total) == pytest.approx(float(whole.sum()), rel=1e-6)
    assert int(n_targets) == (targets >= 0).sum()


def test_both_losses_have_one_gradient() -> None:
    params, (tokens, targets) = random_params(CONFIG), batch(100, (ROWS, SEQ))
    summed = jax.jit(jax.grad(lambda p: 3 * loss_sum(p, tokens, targets, CONFIG, compute(17))[0]))(params)
    each = jax.jit(jax.grad(lambda p: 3 * token_losses(p, tokens, targets, CONFIG, compute(17)).sum()))(params)
    for a, b in zip(*map(jax.tree.leaves, (summed, each)), strict=True):
        assert np.linalg.norm(a - b) <= 3e-5 * np.linalg.norm(b)  # scalars are sums of numbers that cancel


def test_b44_nothing_to_learn_is_zero_and_not_nan() -> None:
    params, (tokens, _) = random_params(CONFIG), batch(100, (ROWS, SEQ))
    run = jax.value_and_grad(partial(loss_sum, config=CONFIG, compute=compute()), has_aux=True)
    (total, n_targets), grads = run(params, tokens, np.full((ROWS, SEQ), -1, np.int32))
    assert (float(total), int(n_targets)) == (0, 0)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads))


def test_padding_rows_of_the_vocabulary_are_no_tokens() -> None:
    params, (tokens, targets) = random_params(CONFIG), batch(100, (ROWS, SEQ))
    inflated = params | {"lm_head": params["lm_head"].at[100:].set(10.0)}
    (a, grad), (b, _) = (
        jax.value_and_grad(lambda p: loss_sum(p, tokens, targets, CONFIG, compute())[0])(p) for p in (inflated, params)
    )
    assert float(a) == float(b)
    assert not np.any(grad["lm_head"][100:])


def test_extreme_logits_stay_finite() -> None:
    """Logits at plus and minus the softcap: exp is summed without a maximum."""
    params, (tokens, targets) = random_params(CONFIG), batch(100, (ROWS, SEQ))
    params = params | {"lm_head": 1e4 * params["lm_head"]}
    run = jax.value_and_grad(lambda p: loss_sum(p, tokens, targets, CONFIG, compute())[0])
    total, grads = run(params)
    assert np.isfinite(total)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert 0 <= float(total) / (targets >= 0).sum() <= 2 * 15 + np.log(100)


def test_whole_logits_never_exist() -> None:
    """Reads the compiled program: no buffer is as large as (batch, seq, vocab) float32, nor is all scratch memory."""
    config = tiny("head", vocab_size=4096, n_layer=1)
    shape, chunk = (16, 64), 32
    whole = shape[0] * shape[1] * config.padded_vocab_size
    assert whole > 8 * 3 * config.padded_vocab_size * config.n_embd  # so that tables are not what is measured
    params = jax.eval_shape(lambda: init(config, 0))
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
    run = jax.grad(partial(loss_sum, config=config, compute=compute(chunk)), has_aux=True)
    compiled = jax.jit(run).lower(params, tokens, tokens).compile()
    shapes = re.findall(r"\b[a-z]+[0-9]+\[([0-9,]+)\]", compiled.as_text())
    largest = max(np.prod([int(n) for n in found.split(",")]) for found in shapes)
    assert largest <= config.padded_vocab_size * max(config.n_embd, chunk)
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * whole / 2

"""The model on shapes that no golden file has, against a plain float64 version; every walk over its layers."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.gpt import hidden, init, logits
from model.layers import scan_period, whole_periods
from model.loss import loss_sum, token_losses
from model.recipe import Compute
from model.weights import flatten
from tests.model import reference
from tests.model.engines import random_params, recipe, tiny

ODD = {"vocab_size": 131, "n_layer": 5, "n_head": 4, "n_kv_head": 1, "n_embd": 64, "seq_len": 48}


def batch(vocab_size: int, shape: tuple[int, int] = (3, 48), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """tokens and targets int32, a quarter of the targets −1."""
    rng = np.random.default_rng(seed)
    tokens, targets = rng.integers(0, vocab_size, (2, *shape), dtype=np.int32)
    return tokens, np.where(rng.random(shape) < 0.25, -1, targets).astype(np.int32)


@pytest.mark.parametrize("name", ["head", "r4"])
def test_losses_and_gradients_of_odd_shapes(name: str) -> None:
    config = tiny(name, **ODD, window_pattern="SL")
    config = replace(config, recipe=short_windows(config.recipe))
    assert min(config.windows) < 48
    params, (tokens, targets) = random_params(config), batch(config.vocab_size)
    compute = Compute(attention="xla", loss_chunk=40)  # 144 tokens do not fill four chunks
    losses = token_losses(params, tokens, targets, config, compute)
    grads, n_targets = jax.jit(jax.grad(partial(loss_sum, config=config, compute=compute), has_aux=True))(
        params, tokens, targets
    )
    with jax.enable_x64(True):
        exact = jax.tree.map(partial(np.asarray, dtype=np.float64), params)
        of = partial(reference.token_losses, tokens=tokens, targets=targets, config=config)
        expected, expected_grads = of(exact), jax.grad(lambda p: of(p).sum())(exact)
    assert int(n_targets) == (targets >= 0).sum()
    assert np.linalg.norm(losses - expected) <= 2e-5 * np.linalg.norm(expected)
    ours, theirs = flatten(grads), flatten(expected_grads)
    far = {k: np.linalg.norm(ours[k] - theirs[k]) / np.linalg.norm(theirs[k]) for k in theirs}
    assert not {k: e for k, e in far.items() if not e <= 1e-4}


def short_windows(recipe):
    """The recipe with windows of a few tokens, whatever its rule is at sizes worth training."""
    architecture = replace(recipe.architecture, short_window_divisor=4, short_window_multiple=1)
    return replace(recipe, architecture=architecture)


@pytest.mark.parametrize(
    ("layers", "pattern", "choices"),
    [
        (4, "SL", [{"layer_loop": "scan"}, {"remat": "full"}]),
        (9, "SSSL", [{"layer_loop": "scan", "remat": "dots"}]),
        (3, "SSL", [{"layer_loop": "scan"}]),  # nothing repeats
    ],
)
def test_every_walk_over_the_layers_is_the_same(layers: int, pattern: str, choices: list[dict[str, str]]) -> None:
    config = tiny("head", n_layer=layers, window_pattern=pattern)
    params, (tokens, targets) = random_params(config), batch(config.vocab_size, (2, 16))

    def run(**choices: str) -> tuple[jax.Array, dict]:
        compute = Compute(attention="xla", **choices)  # type: ignore[arg-type]
        (loss, _), grads = jax.jit(jax.value_and_grad(partial(loss_sum, config=config, compute=compute), has_aux=True))(
            params, tokens, targets
        )
        return loss, flatten(grads)

    loss, grads = run()
    for choice in choices:
        other_loss, other_grads = run(**choice)
        assert float(other_loss) == pytest.approx(float(loss), rel=1e-6)
        for name, grad in grads.items():
            assert np.linalg.norm(other_grads[name] - grad) <= 1e-4 * np.linalg.norm(grad), name


@pytest.mark.parametrize(("pattern", "layers", "scanned"), [("SSSL", 24, 24), ("SSSL", 6, 4), ("S", 6, 4), ("L", 5, 4)])
def test_what_scan_covers(pattern: str, layers: int, scanned: int) -> None:
    config = tiny(seq_len=1024, n_layer=layers, window_pattern=pattern)
    period = scan_period(config)
    assert period * whole_periods(config, period) == scanned


def test_initial_values() -> None:
    config = tiny("head", n_layer=3, n_embd=128, vocab_size=1000)
    params, initial = init(config, 3), recipe("head").initial
    again, other = init(config, 3), init(config, 4)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (params, again)), strict=True))
    assert not np.array_equal(params["wte"], other["wte"])
    limit = (3 / 128) ** 0.5
    layer = params["layers"]["0"]
    assert float(jnp.std(params["wte"])) == pytest.approx(initial.wte_std, rel=0.02)
    assert float(jnp.std(params["lm_head"])) == pytest.approx(0.001, rel=0.02)
    for weight, scale in [(layer["attn"]["c_q"], 1), (layer["mlp"]["c_fc"], 0.4), (params["value_embeds"]["2"], 1)]:
        assert float(jnp.abs(weight).max()) == pytest.approx(scale * limit, rel=0.01)
        assert abs(float(weight.mean())) < 0.01 * limit
    assert not jnp.any(layer["attn"]["c_proj"])
    assert not jnp.any(layer["mlp"]["c_proj"])
    assert np.allclose(params["resid_lambdas"], [1.15, 1.10, 1.05])
    assert np.allclose(params["x0_lambdas"], [0.20, 0.125, 0.05])
    gate = params["layers"]["0"]["attn"]["ve_gate"]
    assert float(gate.min()) >= 0
    assert float(gate.max()) <= 0.02
    plain = init(tiny("r4", n_layer=2), 0)
    assert not jnp.any(plain["layers"]["1"]["attn"]["ve_gate"])
    assert plain.keys() == {"wte", "lm_head", "resid_lambdas", "x0_lambdas", "layers", "value_embeds"}


def test_a_token_sees_its_window_and_nothing_later() -> None:
    """Changing token 20 of a one-layer model changes no logits before it."""
    config = tiny("r4", n_layer=2, seq_len=32)
    params, (tokens, _) = random_params(config), batch(config.vocab_size, (1, 32))
    changed = tokens.copy()
    changed[0, 20] = (changed[0, 20] + 1) % config.vocab_size
    a, b = (np.asarray(hidden(params, t, config, Compute())) for t in (tokens, changed))
    assert np.array_equal(a[0, :20], b[0, :20])
    assert not np.allclose(a[0, 20:], b[0, 20:])


def test_logits_are_cropped_capped_and_float32() -> None:
    config = tiny("head", vocab_size=97)
    params = jax.tree.map(lambda p: 50 * p, random_params(config))
    stream = hidden(params, batch(97, (1, 8))[0], config, Compute(compute_dtype="bfloat16"))
    assert stream.dtype == jnp.bfloat16
    at = logits(params, stream, config)
    assert (at.shape, at.dtype) == ((1, 8, 97), jnp.float32)
    assert 14 < float(jnp.abs(at).max()) <= 15

"""Parameter groups, AdamW and Muon by themselves; three updates of whole models are in tests/test_parity.py."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.gpt import init
from model.muon import muon, orthogonalize
from model.optimizer import labels, make_optimizer
from model.schedules import Dials
from model.weights import flatten
from tests.model import reference
from tests.model.engines import random_params, recipe, tiny

DIALS = Dials(jnp.float32(1), jnp.float32(0.9), jnp.float32(0.0))


def test_b54_parameters_are_plain_dicts_of_arrays() -> None:
    def walk(tree: object) -> None:
        if isinstance(tree, dict):
            for name, part in tree.items():
                assert type(name) is str
                walk(part)
        else:
            assert isinstance(tree, jax.Array)

    walk(init(tiny(), 0))


def test_b55_every_tensor_has_a_group_and_every_matrix_of_a_layer_is_muons() -> None:
    params = init(tiny("head"), 0)
    for name, group in flatten_labels(labels(params)).items():
        assert (group == "muon") == name.startswith("layers")
    state = make_optimizer(recipe("head"), 32).init(params)
    momentum = state.inner_states["muon"].inner_state.momentum
    assert len(jax.tree.leaves(momentum)) == len(jax.tree.leaves(params["layers"]))
    with pytest.raises(KeyError, match="router"):
        labels(params | {"router": params["wte"]})


def flatten_labels(tree: dict, prefix: str = "") -> dict[str, str]:
    found = {}
    for name, part in tree.items():
        found |= flatten_labels(part, f"{prefix}{name}.") if isinstance(part, dict) else {prefix + name: part}
    return found


@pytest.mark.parametrize("name", ["head", "r4"])
def test_rates(name: str) -> None:
    """AdamW's first step is its rate in the direction of the gradient's sign (the table of recipes.md, width 64)."""
    config = tiny(name, n_embd=64)
    params = jax.tree.map(jnp.zeros_like, init(config, 0))
    optimizer = make_optimizer(config.recipe, 64, batch_lr_scale=0.5, lr_scale=0.8)
    grads, state = jax.tree.map(jnp.ones_like, params), optimizer.init(params)
    updates, _ = jax.jit(optimizer.update)(grads, state, params, dials=DIALS)
    wide = (768 / 64) ** 0.5
    expected = {
        "lm_head": {"head": 0.008, "r4": 0.004}[name] * wide * 0.5,
        "wte": 0.3 * wide * 0.5,
        "value_embeds.1": 0.3 * {"head": 0.5, "r4": 1}[name] * wide * 0.5,
        "resid_lambdas": 0.5 * 0.01 * 0.5,
        "x0_lambdas": 0.5 * 0.5,
    }
    if name == "head":
        expected |= dict.fromkeys(["smear_gate", "smear_lambda", "backout_lambda"], 0.2)
    updates = flatten(updates)
    for tensor, rate in expected.items():
        assert np.allclose(updates[tensor], -0.8 * rate, rtol=1e-4), tensor


def test_adamw_over_steps() -> None:
    config, rng = tiny("head"), np.random.default_rng(0)
    params = random_params(config)
    start, group = np.asarray(params["wte"], np.float64), config.recipe.optimizer.wte
    optimizer = make_optimizer(config.recipe, config.n_embd)
    state, grads, rates, update = optimizer.init(params), [], [], jax.jit(optimizer.update)
    for lr_mult in (1.0, 0.25, 0.5, 1.0):
        grad = rng.normal(size=start.shape)
        tree = jax.tree.map(jnp.zeros_like, params) | {"wte": jnp.asarray(grad, jnp.float32)}
        updates, state = update(tree, state, params, dials=DIALS._replace(lr_mult=jnp.float32(lr_mult)))
        params = jax.tree.map(jnp.add, params, updates)
        grads.append(grad)
        rates.append(lr_mult * 0.3 * (768 / config.n_embd) ** 0.5)
    moved = reference.adamw(start, grads, rates, group) - start
    assert np.linalg.norm(params["wte"] - start - moved) <= 2e-5 * np.linalg.norm(moved)


@pytest.mark.parametrize("name", ["head", "r4"])
@pytest.mark.parametrize("shape", [(24, 24), (16, 48), (48, 16), (1, 32)])
def test_polar_express_brings_singular_values_near_one(name: str, shape: tuple[int, int]) -> None:
    settings = recipe(name).optimizer.muon
    x = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    exact, rough = (orthogonalize(x, settings, dtype) for dtype in ("float32", "bfloat16"))
    assert rough.dtype == jnp.float32
    for found in (exact, rough):
        singular = np.stack([reference.spectrum(m) for m in found])
        assert singular.min() > 0.3
        assert singular.max() < 1.35
        if settings.renormalize:
            assert np.allclose(np.sqrt((singular**2).sum(-1)), min(shape) ** 0.5, rtol=1e-5)
    assert np.vdot(exact, rough) > 0.98 * np.linalg.norm(exact) * np.linalg.norm(rough)


def test_muon_of_a_zero_gradient_moves_nothing() -> None:
    params = {"w": jnp.ones((8, 4))}
    transform = muon(recipe("head").optimizer.muon, 0.02, "float32")
    updates, state = transform.update({"w": jnp.zeros((8, 4))}, transform.init(params), params, dials=DIALS)
    assert not np.any(updates["w"])
    assert np.isfinite(state.second["w"]).all()


def test_decay_only_where_the_update_points_the_same_way() -> None:
    rng = np.random.default_rng(0)
    params, grads = ({"w": jnp.asarray(rng.normal(size=(8, 8)), jnp.float32)} for _ in range(2))
    transform = muon(recipe("r4").optimizer.muon, 0.02, "float32")
    run = partial(transform.update, grads, transform.init(params), params)
    plain, decayed = (run(dials=DIALS._replace(weight_decay=jnp.float32(d)))[0]["w"] for d in (0.0, 0.5))
    same_way = -plain * params["w"] >= 0
    assert same_way.any()
    assert not same_way.all()
    assert np.allclose(decayed - plain, np.where(same_way, -0.02 * 0.5 * params["w"], 0), atol=1e-7)

"""Run by test_mesh on eight emulated devices: three steps in each layout, compared with one device. JSON out.

A process of its own, because the number of emulated devices is fixed when JAX starts.
"""

import json
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import yaml

from model.attention import attend_xla
from model.attention_splash import attend_splash
from model.mesh import make_mesh, map_heads, rows_sharding, shard_state
from model.recipe import Compute, GPTConfig, Recipe
from model.step import Training, TrainState, init_state, make_train_step
from model.weights import flatten

HEAD = Recipe.from_dict(yaml.safe_load((Path(__file__).parents[2] / "conf/recipe/head.yaml").read_text()))
# Of two layers the middle is the last: backout would scale what is normed next, and have a gradient of pure rounding.
# An MLP as wide as the model gives Muon fewer shapes, and so fewer loops to compile.
RECIPE = replace(HEAD, architecture=replace(HEAD.architecture, backout=False, mlp_ratio=1))
CONFIG = GPTConfig(RECIPE, vocab_size=100, seq_len=16, n_layer=2, n_head=8, n_kv_head=4, n_embd=64, window_pattern="SL")
TRAINING = Training(iterations=10, schedule=RECIPE.schedule, weight_decay=0.1)
LAYOUTS = {"8×1×1": (8, 1, 1), "1×8×1": (1, 8, 1), "2×2×2": (2, 2, 2), "1×1×8": (1, 1, 8)}
STEPS = 3


@cache
def start() -> TrainState:
    """A state in which no tensor is zero, as many are at a recipe's start; NumPy, so that no step can donate it."""
    state = jax.tree.map(np.asarray, jax.jit(lambda: init_state(CONFIG, TRAINING, seed=0))())
    rng = np.random.default_rng(1)
    noisy = jax.tree.map(lambda leaf: leaf + 0.05 * rng.normal(size=leaf.shape).astype(np.float32), state.params)
    return state._replace(params=noisy)


def batches() -> np.ndarray:
    """int32 [steps, grad_accum_steps, rows, seq_len + 1], a third of the words no targets, unevenly spread."""
    rng = np.random.default_rng(2)
    rows = rng.integers(0, CONFIG.vocab_size, size=(STEPS, 2, 8, CONFIG.seq_len + 1), dtype=np.int32)
    masked = rng.random(rows.shape) < np.linspace(0, 0.7, 8)[:, None]
    return np.where(masked, ~rows, rows)


def train(mesh):
    """Parameters, losses and checksums of three steps."""
    step = make_train_step(CONFIG, Compute(), TRAINING, mesh)
    state = jax.device_put(start()) if mesh is None else shard_state(start(), CONFIG, mesh)
    metrics = []
    for rows in batches():
        placed = jnp.asarray(rows) if mesh is None else jax.device_put(rows, rows_sharding(mesh))
        state, seen = step(state, placed)
        metrics.append({name: np.asarray(value) for name, value in seen.items()})
    return state, metrics


def distance(ours, theirs) -> float:
    """Largest relative error of a tensor, ‖a − b‖ / ‖b‖."""
    pairs = zip(flatten(ours).values(), flatten(theirs).values(), strict=True)
    return max(float(np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(b)) for a, b in pairs)


def layouts() -> dict:
    alone, expected = train(None)
    found = {}
    for name, shape in LAYOUTS.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            state, metrics = train(make_mesh(*shape))
        pairs = list(zip(metrics, expected, strict=True))
        moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim == 2]
        found[name] = {
            "params": distance(state.params, alone.params),
            "moments": distance(state.opt_state, alone.opt_state),
            "loss": max(abs(float(a["loss"] / b["loss"]) - 1) for a, b in pairs),
            "same_rows": all(np.array_equal(a["row_checksums"], b["row_checksums"]) for a, b in pairs),
            "warnings": [str(warning.message) for warning in caught if warning.category is UserWarning],
            "state_share": sum(shard_bytes(leaf) for leaf in moments) / sum(leaf.nbytes for leaf in moments),
        }
    return found


def shard_bytes(array: jax.Array) -> int:
    return array.addressable_shards[0].data.nbytes


def kernel() -> float:
    """Splash on a mesh (interpreted), with KV heads that the tensor axis does not divide, against xla."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(4, 24, heads, 8)).astype(np.float32) for heads in (4, 2, 2))
    mesh = make_mesh(2, 1, 4)

    def splash(q, k, v):
        return attend_splash(q, k, v, window=5, chip="", interpret=True)

    def gradients(attention):
        return jax.jit(jax.grad(lambda qkv: jnp.sum(jnp.sin(attention(*qkv)))))((q, k, v))

    on_mesh = gradients(lambda q, k, v: map_heads(splash, q, k, v, mesh))
    return distance({"g": on_mesh}, {"g": gradients(lambda q, k, v: attend_xla(q, k, v, window=5))})


if __name__ == "__main__":
    json.dump({"layouts": layouts(), "kernel": kernel()}, sys.stdout)

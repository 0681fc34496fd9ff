"""Small models with every tensor at work, and their logits with and without a KV cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import yaml

from model.decode import extend, prefill
from model.gpt import hidden, init, logits
from model.recipe import Compute, GPTConfig, Recipe

ROOT = Path(__file__).resolve().parents[2]
COMPUTE = Compute()

begin = jax.jit(prefill, static_argnames=("capacity", "config", "compute"))
step = jax.jit(extend, static_argnames=("config", "compute"))
read_out = jax.jit(logits, static_argnames="config")


@cache
def recipe(name: str) -> Recipe:
    return Recipe.from_dict(yaml.safe_load((ROOT / f"conf/recipe/{name}.yaml").read_text()))


@contextmanager
def quick_compilation() -> Iterator[None]:
    """For models that run for milliseconds and would compile for seconds."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


def tiny(name: str = "head", **changes: int | str) -> GPTConfig:
    shape = {"vocab_size": 97, "seq_len": 32, "n_layer": 4, "n_head": 2, "n_kv_head": 2, "n_embd": 32}
    return GPTConfig(recipe=recipe(name), **(shape | changes))  # type: ignore[arg-type]


def random_params(config: GPTConfig, seed: int = 0) -> dict:
    """Every tensor random and large enough to matter: at the recipe's start many are zero."""
    rng = np.random.default_rng(seed)
    like = jax.eval_shape(lambda: init(config, 0))
    return jax.tree.map(lambda x: jnp.asarray(0.3 * rng.normal(size=x.shape), jnp.float32), like)


@partial(jax.jit, static_argnames="config")
def _full(params: dict, tokens: jax.Array, config: GPTConfig) -> jax.Array:
    return logits(params, hidden(params, tokens, config, COMPUTE), config)


def full_logits(params: dict, ids: list[int], config: GPTConfig) -> np.ndarray:
    """Logits [seq, vocab] at every position, without a cache. What follows a token does not change its
    logits."""
    padded = np.zeros((1, -(-len(ids) // 64) * 64), np.int32)
    padded[0, : len(ids)] = ids
    return np.asarray(_full(params, jnp.asarray(padded), config))[0, : len(ids)]


def stepped_logits(params: dict, rows: list[list[int]], read: int, config: GPTConfig) -> list[np.ndarray]:
    """Logits [seq − read + 1, vocab] of each row: `read` tokens at once, the others one at a time from the
    cache."""
    width, capacity = read + 3, max(map(len, rows)) + 1
    tokens = np.zeros((len(rows), width), np.int32)
    starts = np.array([min(read, len(row) - 1) for row in rows])
    for i, row in enumerate(rows):
        tokens[i, : starts[i]] = row[: starts[i]]
    stream, kept = begin(params, jnp.asarray(tokens), jnp.asarray(starts), capacity, config, COMPUTE)
    found = [[z] for z in np.asarray(read_out(params, stream, config))]
    for offset in range(max(len(row) - s for row, s in zip(rows, starts, strict=True))):
        at = np.minimum(starts + offset, [len(row) - 1 for row in rows])
        token, before = (np.array([row[p] for row, p in zip(rows, at - d, strict=True)]) for d in (0, 1))
        stream, kept = step(params, kept, *map(jnp.asarray, (token, before, at)), config, COMPUTE)
        for i, z in enumerate(np.asarray(read_out(params, stream, config))):
            if starts[i] + offset < len(rows[i]):
                found[i].append(z)
    return [np.stack(z) for z in found]

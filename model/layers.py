"""The walk over the layers in training: unrolled or by scan, with activations kept or computed again.

An unrolled walk compiles each layer and runs fastest. `scan` compiles one period of the window pattern (with
value embeddings on every second layer of it) and repeats it: quicker to compile, at the price of stacking weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from model.recipe import Compute, GPTConfig

if TYPE_CHECKING:
    from model.gpt import GPT, Block

Rope = tuple[jax.Array, jax.Array]


def run_layers(
    gpt: GPT, x: jax.Array, tokens: jax.Array, rope: Rope, compute: Compute, mesh: Mesh | None
) -> tuple[jax.Array, jax.Array]:
    """The stream [batch, seq, n_embd] after the last layer, and as it was after layer n_layer // 2."""
    config, x0, kept, first, period = gpt.config, x, x, 0, 0
    if compute.layer_loop == "scan":
        period = scan_period(config)
        first = period * whole_periods(config, period)
    if first:
        x, kept = _scan(gpt, x, tokens, rope, compute, mesh, period, first)
    for i in range(first, config.n_layer):
        rows = gpt.value_rows(i, tokens, compute)
        block, window = gpt.layers[str(i)], config.windows[i]
        x = _remat(_layer(block, window, rope, compute, mesh), compute)(gpt.mix(i, x, x0), rows)
        if i == config.n_layer // 2:
            kept = x
    return x, kept


def scan_period(config: GPTConfig) -> int:
    """Layers after which both the window pattern and the value embeddings repeat."""
    return math.lcm(len(config.window_pattern), 2)


def whole_periods(config: GPTConfig, period: int) -> int:
    """How often the first `period` windows repeat from layer 0 on; the last layer, always long, may end it."""
    windows, count = config.windows, 1
    while windows[count * period : (count + 1) * period] == windows[:period]:
        count += 1
    return count if count * period <= config.n_layer else 0


def _layer(
    block: Block, window: int, rope: Rope, compute: Compute, mesh: Mesh | None
) -> Callable[[jax.Array, jax.Array | None], jax.Array]:
    return lambda x, value_rows: block(x, value_rows, rope, window=window, compute=compute, mesh=mesh)


def _remat(layer: Callable[..., jax.Array], compute: Compute) -> Callable[..., jax.Array]:
    """The layer, keeping for its backward pass: everything, the products with weights, or only its input."""
    if compute.remat == "none":
        return layer
    policies = jax.checkpoint_policies
    keep = policies.dots_with_no_batch_dims_saveable if compute.remat == "dots" else policies.nothing_saveable
    return jax.checkpoint(layer, policy=keep)


def _scan(
    gpt: GPT,
    x: jax.Array,
    tokens: jax.Array,
    rope: Rope,
    compute: Compute,
    mesh: Mesh | None,
    period: int,
    n_layer: int,
) -> tuple[jax.Array, jax.Array]:
    """run_layers over layers 0 … n_layer − 1, a multiple of `period`."""
    config, x0 = gpt.config, x
    places = range(period)
    graphs, weights, rows = [], [], []
    for place in places:
        parts = [nnx.split(gpt.layers[str(i)]) for i in range(place, n_layer, period)]
        graphs.append(parts[0][0])
        weights.append(jax.tree.map(lambda *leaves: jnp.stack(leaves), *(state for _, state in parts)))
        found = [row for i in range(place, n_layer, period) if (row := gpt.value_rows(i, tokens, compute)) is not None]
        rows.append(jnp.stack(found) if found else None)

    def one_period(carry: tuple[jax.Array, jax.Array], given: tuple) -> tuple[tuple[jax.Array, jax.Array], None]:
        (x, kept), (start, weights, rows) = carry, given
        for place in places:
            block = nnx.merge(graphs[place], weights[place])
            layer = _remat(_layer(block, config.windows[place], rope, compute, mesh), compute)
            x = layer(gpt.mix(start + place, x, x0), rows[place])
            kept = jnp.where(start + place == config.n_layer // 2, x, kept)
        return (x, kept), None

    starts = jnp.arange(0, n_layer, period)
    return jax.lax.scan(one_period, (x, x), (starts, weights, rows))[0]

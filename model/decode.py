"""The transformer with memory: a forward pass over prompts that keeps keys and values, and steps of one
token.

Row r's token at position p has its keys and values in slot p, whatever the other rows do: prompts are padded
at their right end, padding is never visible (a token sees slots up to its own), and a step overwrites it. So
every position has the logits of `model.gpt.hidden` on that row alone, past a sliding window as well.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from model.attention import attend
from model.gpt import Params, bind, rotary
from model.recipe import Compute, GPTConfig

Cache = tuple[tuple[jax.Array, jax.Array], ...]
"""Keys and values of each layer, [rows, n_kv_head, capacity, head_dim] in compute dtype.

With the slots of a head side by side both products of a step are plain matrix products; slot-major they took five
times as long on a CPU.
"""


def prefill(
    params: Params,
    tokens: jax.Array,
    lengths: jax.Array,
    capacity: int,
    config: GPTConfig,
    compute: Compute,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, Cache]:
    """Read prompts: tokens int32 [rows, width], padded at the right to `width`, with lengths [rows] ≥ 1.

    Returns the stream after the last norm at each row's last token, [rows, n_embd], and a cache of
    `capacity` slots.
    """
    gpt = bind(params, config)
    cache: list[tuple[jax.Array, jax.Array]] = []
    room = ((0, 0), (0, 0), (0, capacity - tokens.shape[1]), (0, 0))

    def read(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        cache.append((jnp.pad(k.swapaxes(1, 2), room), jnp.pad(v.swapaxes(1, 2), room)))
        return attend(q, k, v, window=config.windows[layer], compute=compute, mesh=mesh)

    x = gpt.smear_all(gpt.embed(tokens, compute))
    stream = gpt.walk(x, tokens, rotary(jnp.arange(tokens.shape[1]), config), compute, read)
    last = jnp.take_along_axis(stream, (lengths - 1)[:, None, None], axis=1)[:, 0]
    return last, tuple(cache)


def extend(
    params: Params,
    cache: Cache,
    tokens: jax.Array,
    previous: jax.Array,
    positions: jax.Array,
    config: GPTConfig,
    compute: Compute,
) -> tuple[jax.Array, Cache]:
    """Read one more token of each row: tokens, the token before each and its position ≥ 1, all int32 [rows].

    Returns the stream after the last norm [rows, n_embd] and the cache with the token in it.
    """
    gpt = bind(params, config)
    grown: list[tuple[jax.Array, jax.Array]] = []
    rows = jnp.arange(tokens.shape[0])
    slots = jnp.arange(cache[0][0].shape[2])
    distance = positions[:, None] - slots

    def read(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        keys, values = cache[layer]
        keys = keys.at[rows, :, positions].set(k[:, 0])
        values = values.at[rows, :, positions].set(v[:, 0])
        grown.append((keys, values))
        return _attend_one(q, keys, values, (distance >= 0) & (distance <= config.windows[layer]))

    x = gpt.embed(tokens[:, None], compute)
    if config.recipe.architecture.smear:
        x = gpt.smear(x, gpt.embed(previous[:, None], compute))
    with jax.ensure_compile_time_eval():  # for all slots: XLA's CPU compiler would compute it anew for every head
        cos, sin = rotary(jnp.arange(cache[0][0].shape[2]), config)
    rope = cos[positions][:, None], sin[positions][:, None]
    stream = gpt.walk(x, tokens[:, None], rope, compute, read)
    return stream[:, 0], tuple(grown)


def _attend_one(q: jax.Array, keys: jax.Array, values: jax.Array, visible: jax.Array) -> jax.Array:
    """`model.attention.attend` for one query a row: q [rows, 1, n_head, head_dim], visible bool [rows, capacity]."""
    rows, n_kv_head, _, head_dim = keys.shape
    grouped = q.reshape(rows, n_kv_head, -1, head_dim)  # query heads that share a KV head are neighbours
    scores = jnp.einsum("rkgd,rksd->rkgs", grouped, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], scores * head_dim**-0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    return jnp.einsum("rkgs,rksd->rkgd", weights, values).reshape(q.shape)

"""Losses of many continuations of one prefix, from a single forward pass.

The same mathematics as `model.gpt.hidden` followed by `model.gpt.logits`, with savings that change no number:

* A row's prefix is computed once, and each of its branches (`model.buckets`) attends to the prefix and to itself.
* The prefix goes through in chunks whose number is known at run time only, its keys and values kept beside. So one
  compiled program serves all lengths up to its capacity, and does no more work than the longest row needs.
* Nobody reads the last layer's stream of the prefix, only its keys and values; XLA drops the rest of that layer.
* Only scored positions get logits, and those a few columns at a time: no [rows, tokens, vocab] array exists.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model.buckets import Batch
from model.gpt import GPT, Params, bind, logits, rms_norm, rotary
from model.mesh import ROWS
from model.recipe import Compute, GPTConfig

CHUNK_COLUMNS = 128  # of the prefix at one time, more where there are so few rows that …
CHUNK_TOKENS = 1024  # … this many tokens would not be reached
LOGIT_COLUMNS = 8  # scored positions of a row whose logits exist at one time, more where there are so few rows that …
LOGIT_TOKENS = 256  # … this many would not be reached

Arrays = dict[str, jax.Array]
Read = Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]


def device_arrays(batch: Batch, mesh: Mesh | None) -> Arrays:
    """The batch on the device; on a mesh, its rows are spread over the axes that split a batch."""
    names = ("prefix", "prefix_length", "tokens", "previous", "positions", "branch", "targets")
    arrays = {name: getattr(batch, name) for name in names}
    if mesh is None:
        return jax.device_put(arrays)
    sharding = NamedSharding(mesh, PartitionSpec(ROWS))
    # every process holds the whole batch and keeps its own rows
    return {name: jax.make_array_from_callback(a.shape, sharding, a.__getitem__) for name, a in arrays.items()}


@partial(jax.jit, static_argnames=("config", "compute", "mesh"))
def score(
    params: Params, batch: Arrays, config: GPTConfig, compute: Compute, mesh: Mesh | None = None
) -> tuple[jax.Array, jax.Array]:
    """Score a batch of R rows with P prefix columns and S branch columns.

    Returns for every branch position the cross entropy of its target, float32 nats [R, S], and whether the target is
    the most likely token (of equally likely ones the first), bool [R, S]. 0 and False where nothing is scored.
    """
    gpt = bind(params, config)
    keys, values = _read_prefix(gpt, batch["prefix"], batch["prefix_length"], compute)
    masks = {window: visible(batch, window)[:, None] for window in set(config.windows)}

    def read(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k, v = jnp.concatenate([keys[layer], k], axis=1), jnp.concatenate([values[layer], v], axis=1)
        return _attend(q, k, v, masks[config.windows[layer]])

    stream = _forward(gpt, batch["tokens"], batch["previous"], batch["positions"], compute, read)
    losses, hits = _losses(params, stream, batch["targets"], config)
    if mesh is not None:  # whole on every device, so that every process can read them
        whole = NamedSharding(mesh, PartitionSpec())
        losses, hits = (jax.lax.with_sharding_constraint(found, whole) for found in (losses, hits))
    return losses, hits


def visible(batch: Arrays, window: int) -> jax.Array:
    """Which keys (prefix, then branches) a branch token sees: bool [R, S, P + S].

    Itself, earlier tokens of its own branch, and the row's prefix; none more than `window` tokens before it.
    """
    position, branch = batch["positions"], batch["branch"]
    column = jnp.arange(batch["prefix"].shape[1])
    in_prefix = (column < batch["prefix_length"][:, None])[:, None, :]
    in_prefix = in_prefix & (position[:, :, None] - column <= window)
    distance = position[:, :, None] - position[:, None, :]
    in_branch = (branch[:, :, None] == branch[:, None, :]) & (distance >= 0) & (distance <= window)
    return jnp.concatenate([in_prefix, in_branch], axis=2)


def _forward(
    gpt: GPT, tokens: jax.Array, previous: jax.Array, positions: jax.Array, compute: Compute, read: Read
) -> jax.Array:
    """The stream after the last norm [rows, columns, n_embd], attention being left to `read(layer, q, k, v)`.

    previous: the token before each one; positions [rows or 1, columns]: place of each token in its sequence.
    """
    config = gpt.config
    cos, sin = rotary(positions, config)
    x = gpt.embed(tokens, compute)
    if config.recipe.architecture.smear:
        x = jnp.where(positions[..., None] > 0, gpt.smear(x, gpt.embed(previous, compute)), x)
    x0 = kept = x
    for i in range(config.n_layer):
        block, x = gpt.layers[str(i)], gpt.mix(i, x, x0)
        q, k, v = block.attn.qkv(rms_norm(x), gpt.value_rows(i, tokens, compute), cos, sin)
        x = x + block.attn.out(read(i, q, k, v))
        x = x + block.mlp(rms_norm(x))
        if i == config.n_layer // 2:
            kept = x
    return gpt.finish(x, kept)


def _read_prefix(
    gpt: GPT, prefix: jax.Array, length: jax.Array, compute: Compute
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Keys and values of every layer for the prefix, each [rows, P, n_kv_head, head_dim]; undefined past `length`."""
    config, (rows, capacity) = gpt.config, prefix.shape
    columns = min(capacity, max(CHUNK_COLUMNS, CHUNK_TOKENS // rows))
    previous = jnp.roll(prefix, 1, axis=1)
    empty = jnp.zeros((rows, capacity, config.n_kv_head, config.head_dim), compute.compute_dtype)
    Caches = tuple[list[jax.Array], list[jax.Array]]

    def chunk(number: jax.Array, caches: Caches) -> Caches:
        start = number * columns
        keys, values = map(list, caches)

        def read(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            keys[layer] = jax.lax.dynamic_update_slice_in_dim(keys[layer], k, start, axis=1)
            values[layer] = jax.lax.dynamic_update_slice_in_dim(values[layer], v, start, axis=1)
            window = config.windows[layer]
            reach = min(capacity, window + columns)
            first = jnp.clip(start - window, 0, capacity - reach)
            k, v = (jax.lax.dynamic_slice_in_dim(c[layer], first, reach, axis=1) for c in (keys, values))
            distance = (start + jnp.arange(columns))[:, None] - (first + jnp.arange(reach))
            return _attend(q, k, v, ((distance >= 0) & (distance <= window))[None, None])

        here = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=columns, axis=1)
        _forward(gpt, here(prefix), here(previous), (start + jnp.arange(columns))[None], compute, read)
        return keys, values

    layers = range(config.n_layer)
    chunks = (jnp.max(length) + columns - 1) // columns
    return jax.lax.fori_loop(0, chunks, chunk, ([empty for _ in layers], [empty for _ in layers]))


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, mask=mask, implementation="xla")


def _losses(params: Params, stream: jax.Array, targets: jax.Array, config: GPTConfig) -> tuple[jax.Array, jax.Array]:
    """Cross entropy and hits at the scored positions, which are moved to the front of each row and taken in chunks."""
    rows, width = targets.shape
    columns = min(width, max(LOGIT_COLUMNS, LOGIT_TOKENS // rows))
    scored = targets >= 0
    front = jnp.argsort(~scored, axis=1, stable=True)
    stream = jnp.take_along_axis(stream, front[..., None], axis=1)
    aims = jnp.take_along_axis(targets, front, axis=1)

    def chunk(number: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        # Where a last chunk does not fit, `dynamic_slice` moves it to the left, and so is its result.
        at = number * columns
        aim = jax.lax.dynamic_slice_in_dim(aims, at, columns, axis=1)
        z = logits(params, jax.lax.dynamic_slice_in_dim(stream, at, columns, axis=1), config)
        aimed = jnp.take_along_axis(z, jnp.maximum(aim, 0)[..., None], axis=2)
        better = (z > aimed) | ((z == aimed) & (jnp.arange(z.shape[2]) < aim[..., None]))
        loss = jax.nn.logsumexp(z, axis=2) - aimed[..., 0]
        new = jnp.where(aim >= 0, loss, 0.0), ~jnp.any(better, axis=2) & (aim >= 0)
        losses, hits = (
            jax.lax.dynamic_update_slice_in_dim(old, part, at, axis=1) for old, part in zip(found, new, strict=True)
        )
        return losses, hits

    chunks = (jnp.max(jnp.sum(scored, axis=1)) + columns - 1) // columns
    empty = jnp.zeros((rows, width), jnp.float32), jnp.zeros((rows, width), bool)
    losses, hits = jax.lax.fori_loop(0, chunks, chunk, empty)
    place = jnp.maximum(jnp.cumsum(scored, axis=1) - 1, 0)
    losses, hits = (jnp.take_along_axis(found, place, axis=1) for found in (losses, hits))
    return jnp.where(scored, losses, 0.0), hits & scored

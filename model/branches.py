"""Losses of many continuations of one prefix, from a single forward pass.

The same mathematics as `model.gpt.hidden` followed by `model.gpt.logits`, with savings that change no number:

* A row's prefix is computed once, and each of its branches (`model.buckets`) attends to the prefix and to itself.
* Prefix and branches go through in chunks whose number is known at run time only, their keys and values kept. So one
  compiled program serves all lengths up to its capacity, and does no more work than the longest row needs.
* Of a prefix only keys and values are read, and of a layer's only as many as the windows from it upwards reach back:
  early tokens go through the lower layers alone, and those that no window reaches the planner leaves out.
* Only scored positions get logits, and those a few columns at a time: no [rows, tokens, vocab] array exists.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model.buckets import Batch
from model.gpt import GPT, Params, Read, bind, raw_logits, rotary, softcapped
from model.layers import Rope
from model.mesh import ROWS, row_shards
from model.recipe import Compute, GPTConfig

# What is read or computed at one time: so many columns of every row, more where there are so few rows that the number
# of tokens would not be reached. Fewer columns end nearer to the longest row, more make larger products.
PREFIX_COLUMNS, PREFIX_TOKENS = 64, 128
BRANCH_COLUMNS, BRANCH_TOKENS = 32, 32
LOGIT_COLUMNS = 64, 16  # of all rows of a device together

STRETCHES = 4  # of a prefix, each read up to another layer: more would save little, and each is compiled on its own

_UNSEEN = -1e30  # the score of a key that is not visible: no share in a softmax with any that is

Arrays = dict[str, jax.Array]
Cache = tuple[list[jax.Array], list[jax.Array]]
"""Keys [rows, n_kv_head, P + S, head_dim] and values [rows, n_kv_head, head_dim, P + S] of each layer in compute dtype:
the prefix, then the branches. So both products of attention read their cache as it lies."""


def reach(config: GPTConfig) -> int:
    """How many tokens before it a token's output can depend on: through every layer's window, and smearing."""
    return sum(config.windows) + 1


def device_arrays(batch: Batch, mesh: Mesh | None) -> Arrays:
    """The batch on the device; on a mesh, its rows are spread over the axes that split a batch."""
    names = ("prefix", "kept", "length", "tokens", "previous", "positions", "branch", "targets")
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
    stream = _read_branches(gpt, batch, _read_prefix(gpt, batch, compute), compute)
    losses, hits = _losses(params, stream, batch["targets"], config, 1 if mesh is None else row_shards(mesh))
    if mesh is not None:  # whole on every device, so that every process can read them
        whole = NamedSharding(mesh, PartitionSpec())
        losses, hits = (jax.lax.with_sharding_constraint(found, whole) for found in (losses, hits))
    return losses, hits


def _forward(
    gpt: GPT,
    tokens: jax.Array,
    previous: jax.Array,
    positions: jax.Array,
    rope: Rope,
    compute: Compute,
    read: Read,
    layers: int | None = None,
) -> jax.Array:
    """The stream after the last norm [rows, columns, n_embd], attention being left to `read(layer, q, k, v)`.

    previous: the token before each one; positions [rows, columns]: place of each token in its sequence; rope: the
    rotary tables of these places, made outside the loop over chunks, since XLA would make them anew for every use;
    layers: how many to walk, None: all.
    """
    x = gpt.embed(tokens, compute)
    if gpt.config.recipe.architecture.smear:
        x = jnp.where(positions[..., None] > 0, gpt.smear(x, gpt.embed(previous, compute)), x)
    return gpt.walk(x, tokens, rope, compute, read, layers)


def _read_prefix(gpt: GPT, batch: Arrays, compute: Compute) -> Cache:
    """The cache with every row's prefix in it, at the right end of the first P columns."""
    config, prefix, kept = gpt.config, batch["prefix"], batch["kept"]
    (rows, width), room = prefix.shape, prefix.shape[1] + batch["tokens"].shape[1]
    columns = _columns(width, rows, PREFIX_COLUMNS, PREFIX_TOKENS)
    chunks = -(-jnp.max(kept) // columns)
    previous = jnp.roll(prefix, 1, axis=1)
    places = batch["length"][:, None] - width + jnp.arange(width)
    rope = rotary(places, config)

    def chunk(number: jax.Array, cache: Cache, layers: int) -> Cache:
        start = width - (chunks - number) * columns
        keys, values = map(list, cache)
        here = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=columns, axis=1)
        column = start + jnp.arange(columns)
        positions = here(places)

        def read(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            keys[layer], values[layer] = _keep((keys[layer], values[layer]), k, v, start)
            window = config.windows[layer]
            reach = min(width, window + columns)
            first = jnp.clip(start - window, 0, width - reach)
            near = partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=reach)
            other = first + jnp.arange(reach)
            distance = column - other[:, None]
            mask = (distance >= 0) & (distance <= window) & (other >= width - kept[:, None])[..., None]
            return _attend(q, near(keys[layer], axis=2), near(values[layer], axis=3), mask)

        tables = here(rope[0]), here(rope[1])
        _forward(gpt, here(prefix), here(previous), positions, tables, compute, read, layers)
        return keys, values

    empty = jnp.zeros((rows, config.n_kv_head, room, config.head_dim), compute.compute_dtype)
    cache = [empty] * config.n_layer, [empty.swapaxes(2, 3)] * config.n_layer
    begun: jax.Array | int = 0
    step = -(-config.n_layer // STRETCHES)
    for layers in [*range(step, config.n_layer, step), config.n_layer]:
        wanted = -(-sum(config.windows[layers:]) // columns)  # chunks at the end that the layers above need as well
        if wanted * columns < width:
            until = jnp.maximum(chunks - wanted, 0)
            cache = jax.lax.fori_loop(begun, until, partial(chunk, layers=layers), cache)
            begun = until
    return cache


def _read_branches(gpt: GPT, batch: Arrays, cache: Cache, compute: Compute) -> jax.Array:
    """The branches' stream after the last norm [R, S, n_embd]; `cache` holds the prefixes."""
    config, (rows, width) = gpt.config, batch["tokens"].shape
    columns = _columns(width, rows, BRANCH_COLUMNS, BRANCH_TOKENS)
    behind = batch["prefix"].shape[1]
    rope = rotary(batch["positions"], config)
    reaches = {window: min(behind, window) for window in config.windows}  # columns of the prefix that are in sight

    def chunk(number: jax.Array, carry: tuple[jax.Array, Cache]) -> tuple[jax.Array, Cache]:
        start = number * columns
        stream, (keys, values) = carry[0], map(list, carry[1])
        here = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=columns, axis=1)
        positions, branch = here(batch["positions"]), here(batch["branch"])
        masks = {window: visible(batch, positions, branch, window, reach) for window, reach in reaches.items()}

        def read(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            at, window = behind + start, config.windows[layer]
            keys[layer], values[layer] = _keep((keys[layer], values[layer]), k, v, at)
            near = slice(behind - reaches[window], None)
            return _attend(q, keys[layer][:, :, near], values[layer][..., near], masks[window])

        tokens, previous, tables = here(batch["tokens"]), here(batch["previous"]), (here(rope[0]), here(rope[1]))
        found = _forward(gpt, tokens, previous, positions, tables, compute, read)
        return _put(stream, found, start), (keys, values)

    empty = jnp.zeros((rows, width, config.n_embd), compute.compute_dtype)
    chunks = -(-jnp.max(jnp.sum(batch["branch"] >= 0, axis=1)) // columns)
    return jax.lax.fori_loop(0, chunks, chunk, (empty, cache))[0]


def visible(batch: Arrays, position: jax.Array, branch: jax.Array, window: int, reach: int) -> jax.Array:
    """Which keys a branch token of this position and branch [R, columns] sees: bool [R, reach + S, columns].

    Keys are the last `reach` columns of the prefix, then the branches. It sees itself, earlier tokens of its own
    branch, and the row's prefix; none more than `window` tokens before it.
    """
    position, branch = position[:, None], branch[:, None]
    back = jnp.arange(-reach, 0)  # column of the prefix, counted from its right end
    on_prefix = (back >= -batch["kept"][:, None])[..., None]
    on_prefix = on_prefix & (position - (batch["length"][:, None] + back)[..., None] <= window)
    distance = position - batch["positions"][..., None]
    on_branch = (branch == batch["branch"][..., None]) & (distance >= 0) & (distance <= window)
    return jnp.concatenate([on_prefix, on_branch], axis=1)


def _columns(width: int, rows: int, least: int, tokens: int) -> int:
    """Columns of a chunk; they divide `width`, as `dynamic_slice` would move a chunk that does not fit."""
    wanted = max(least, tokens // rows)
    return math.gcd(width, 1 << wanted.bit_length() - 1)


def _put(array: jax.Array, part: jax.Array, column: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(array, part, column, axis=1)


def _keep(cache: tuple[jax.Array, jax.Array], k: jax.Array, v: jax.Array, column: jax.Array) -> tuple[jax.Array, ...]:
    """The keys and values of a layer with k, v [R, columns, n_kv_head, head_dim] written from `column` on."""
    put, (keys, values) = jax.lax.dynamic_update_slice_in_dim, cache
    return put(keys, k.transpose(0, 2, 1, 3), column, axis=2), put(values, v.transpose(0, 2, 3, 1), column, axis=3)


def _attend(q: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention of q [R, columns, n_head, head_dim] over keys [R, n_kv_head, K, head_dim] and values [R, n_kv_head,
    head_dim, K]; mask bool [R or 1, K, columns].

    Keys come first in the scores, as in `model.attention`. A finite number stands for the score of what is not
    visible, since a column of padding sees nothing.
    """
    (rows, columns, n_head, head_dim), n_kv_head = q.shape, keys.shape[1]
    queries = q.transpose(0, 2, 3, 1).reshape(rows, n_kv_head, n_head // n_kv_head, head_dim, columns)
    scores = jnp.einsum("rnkd,rngdq->rngkq", keys, queries, preferred_element_type=jnp.float32) * head_dim**-0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, _UNSEEN), axis=-2).astype(values.dtype)
    found = jnp.einsum("rndk,rngkq->rngdq", values, weights)
    return found.reshape(rows, n_head, head_dim, columns).transpose(0, 3, 1, 2)


def _losses(
    params: Params, stream: jax.Array, targets: jax.Array, config: GPTConfig, shards: int
) -> tuple[jax.Array, jax.Array]:
    """Cross entropy and hits at the scored positions, which are moved to the front of each of the `shards` of the rows
    and taken in chunks: large ones, and small ones for what is left."""
    shape, targets = targets.shape, targets.reshape(shards, -1)
    stream, width = stream.reshape(shards, -1, stream.shape[-1]), targets.shape[1]
    scored = targets >= 0
    front = jnp.argsort(~scored, axis=1, stable=True)
    stream = jnp.take_along_axis(stream, front[..., None], axis=1)
    aims = jnp.take_along_axis(targets, front, axis=1)

    def chunk(number: jax.Array, found: tuple[jax.Array, jax.Array], columns: int) -> tuple[jax.Array, jax.Array]:
        at = number * columns
        aim = jax.lax.dynamic_slice_in_dim(aims, at, columns, axis=1)
        here = jax.lax.dynamic_slice_in_dim(stream, at, columns, axis=1)
        loss, hit = _judge(params, here.reshape(shards * columns, -1), aim.reshape(-1), config)
        return _put(found[0], loss.reshape(aim.shape), at), _put(found[1], hit.reshape(aim.shape), at)

    large, small = (math.gcd(width, columns) for columns in LOGIT_COLUMNS)
    most = jnp.max(jnp.sum(scored, axis=1))
    whole = (most + large // 2 - 1) // large  # two small ones take as long as a large one
    found = jnp.zeros((shards, width), jnp.float32), jnp.zeros((shards, width), bool)
    found = jax.lax.fori_loop(0, whole, partial(chunk, columns=large), found)
    found = jax.lax.fori_loop(whole * (large // small), -(-most // small), partial(chunk, columns=small), found)
    place = jnp.maximum(jnp.cumsum(scored, axis=1) - 1, 0)
    losses, hits = (jnp.take_along_axis(values, place, axis=1) for values in found)
    return jnp.where(scored, losses, 0.0).reshape(shape), (hits & scored).reshape(shape)


def _judge(params: Params, stream: jax.Array, aim: jax.Array, config: GPTConfig) -> tuple[jax.Array, jax.Array]:
    """Cross entropies and hits [tokens] of the targets aim [tokens] (−1: none) after stream [tokens, n_embd].

    The same as of `model.gpt.logits`. As in `model.loss`, the vocabulary is the first axis, so that sums over it
    vectorise, and softcapped logits, at most 60, need no running maximum.
    """
    z = softcapped(raw_logits(params, stream, config), config)
    aimed = jnp.take_along_axis(z, jnp.maximum(aim, 0)[None], axis=0)[0]
    before = jnp.arange(config.vocab_size)[:, None] < aim
    better = jnp.sum((z > aimed) | ((z == aimed) & before), axis=0, dtype=jnp.int32)
    loss = jnp.log(jnp.sum(jnp.exp(z), axis=0)) - aimed
    return jnp.where(aim >= 0, loss, 0.0), (better == 0) & (aim >= 0)

"""Answers to many prompts at once: one pass over the prompts, then a compiled loop over a KV cache.

The loop is `lax.while_loop` on the device: sampling, stopping and the tool's state are part of it, so
nothing returns to Python between tokens. It leaves early when every row has stopped, and pauses when a row
has asked for the calculator: Python computes, and the loop goes on with the result forced, as nanochat's
Engine does it.

Shapes come from a few buckets (`bucket`), and temperature, top_p, the number of new tokens and the seed are
arguments of the compiled program: calls of one bucket compile nothing. A row depends on its own prompt, its
sample number and the seed only, never on its neighbours.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model.decode import Cache, extend, prefill
from model.gpt import Params, logits, raw_logits, softcapped
from model.recipe import Compute, GPTConfig
from model.sampling import Sampling, choose

MAX_FORCED = 128  # tokens of a tool's result with its two markers; a longer result is not given
SLICE = 64  # tokens between two returns to Python, where the caller may stop
WIDTH_FLOOR, TOKENS_FLOOR = 32, 32  # the smallest buckets of prompt length and of new tokens


class Tool(NamedTuple):
    """A tool that the model calls by writing an expression between two of its tokens."""

    python_start: int
    python_end: int
    output_start: int
    output_end: int
    run: Callable[[list[int]], list[int] | None]  # expression ids → result ids, or None: no result


class Completion(NamedTuple):
    """What one row wrote: ids without the stop token, which of them a tool forced, and whether it stopped
    itself."""

    tokens: list[int]
    forced: list[bool]
    stopped: bool


class _State(NamedTuple):
    """The loop's carry. R rows, N the bucket of new tokens."""

    step: jax.Array  # int32: tokens written so far
    cache: Cache
    stream: jax.Array  # [R, n_embd] after the last norm, of the last token
    last: jax.Array  # int32 [R]: the last token
    lengths: jax.Array  # int32 [R]: tokens of the prompt
    written: jax.Array  # int32 [R, N]; −1 after the end of a row
    was_forced: jax.Array  # bool [R, N]
    done: jax.Array  # bool [R]
    in_call: jax.Array  # bool [R]: inside python_start … python_end
    waiting: jax.Array  # bool [R]: a call is complete and Python has to compute
    forced: jax.Array  # int32 [R, MAX_FORCED], −1 after the end
    forced_at: jax.Array  # int32 [R]: how much of `forced` has been used
    keys: jax.Array  # [R] random keys


class Engine:
    """A model ready to answer. Weights are held in compute dtype, which is what the products use anyway.

    On a mesh the rows are spread over its data and fsdp axes.
    """

    def __init__(self, params: Params, config: GPTConfig, compute: Compute, mesh: Mesh | None = None):
        everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self.params = jax.device_put(
            jax.tree.map(lambda leaf: jnp.asarray(leaf, compute.compute_dtype), params), everywhere
        )
        self.config, self.compute, self.mesh = config, compute, mesh

    def next_logits(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """Logits float32 [prompts, vocab_size] of the token after each prompt."""
        tokens, lengths = self._pack(prompts)
        stream, _ = _prefill(self.params, tokens, lengths, tokens.shape[1], self.config, self.compute, self.mesh)
        return np.asarray(_logits(self.params, stream, self.config))[: len(prompts)]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop: Sequence[int],
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        num_samples: int = 1,
        tool: Tool | None = None,
        between: Callable[[], None] | None = None,
    ) -> list[list[Completion]]:
        """num_samples completions of each prompt, each of at most max_new_tokens tokens (the stop token
        counts).

        temperature 0 is greedy. `stop` ids end a row. `between` is called every SLICE tokens; it may raise
        to stop. A prompt is read once, however many samples are drawn from it.
        """
        if max_new_tokens < 1 or num_samples < 1:
            raise ValueError("max_new_tokens and num_samples must be at least 1")
        tokens, lengths = self._pack(prompts)
        new = bucket(max_new_tokens, TOKENS_FLOOR)
        capacity = tokens.shape[1] + new
        stream, cache = _prefill(self.params, tokens, lengths, capacity, self.config, self.compute, self.mesh)
        rows = tokens.shape[0] * num_samples
        keys = np.zeros((tokens.shape[0], num_samples, 2), np.uint32)
        for number, prompt in enumerate(prompts):
            identity = zlib.crc32(np.asarray(prompt, np.int32).tobytes())
            keys[number] = [(identity, sample) for sample in range(num_samples)]
        state = _start(stream, cache, tokens, lengths, self._put(keys.reshape(rows, 2)), seed, num_samples, new)
        state = state._replace(done=self._put(np.arange(rows) >= len(prompts) * num_samples))
        sampling = Sampling(temperature == 0, top_k, top_p is not None and top_p < 1)
        markers = (tool.python_start, tool.python_end) if tool else (-1, -1)
        stops = np.full(bucket(len(stop), 4), -1, np.int32)
        stops[: len(stop)] = stop
        decode = partial(
            _decode,
            self.params,
            stop=jnp.asarray(stops),
            markers=jnp.asarray(markers, jnp.int32),
            temperature=jnp.float32(max(temperature, 1e-6)),
            top_p=jnp.float32(1.0 if top_p is None else top_p),
            config=self.config,
            compute=self.compute,
            sampling=sampling,
        )
        while True:
            until = min((int(state.step) // SLICE + 1) * SLICE, max_new_tokens)
            state = decode(state, until=jnp.int32(until))
            if int(state.step) >= max_new_tokens or bool(jnp.all(state.done)):
                break
            if tool and bool(jnp.any(state.waiting)):
                state = self._answer_calls(state, tool)
            elif between:
                between()
        return _completions(state, len(prompts), num_samples)

    def _pack(self, prompts: Sequence[Sequence[int]]) -> tuple[jax.Array, jax.Array]:
        """Prompts int32 [rows, width] and lengths [rows], both padded to their buckets."""
        if not prompts or not all(prompts):
            raise ValueError("generate needs at least one prompt and at least one token in each")
        devices = 1 if self.mesh is None else self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        rows = bucket(-(-len(prompts) // devices), 1) * devices
        tokens = np.zeros((rows, bucket(max(map(len, prompts)), WIDTH_FLOOR)), np.int32)
        lengths = np.ones(rows, np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
            lengths[row] = len(prompt)
        return self._put(tokens), self._put(lengths)

    def _put(self, array: np.ndarray) -> jax.Array:
        if self.mesh is None:
            return jnp.array(array)
        return jax.device_put(array.copy(), NamedSharding(self.mesh, PartitionSpec(("data", "fsdp"))))

    def _answer_calls(self, state: _State, tool: Tool) -> _State:
        """Run the tool for the rows that wait for it and force what it said."""
        waiting, forced, at = np.asarray(state.waiting), np.array(state.forced), np.array(state.forced_at)
        written = np.asarray(state.written)[:, : int(state.step)]
        for row in np.flatnonzero(waiting):
            ids = written[row].tolist()
            start = len(ids) - 1 - ids[::-1].index(tool.python_start)
            expression = ids[start + 1 : -1]
            result = tool.run(expression) if expression else None
            if result is None or len(result) + 2 > MAX_FORCED:
                continue
            forced[row] = -1
            forced[row, : len(result) + 2] = [tool.output_start, *result, tool.output_end]
            at[row] = 0
        return state._replace(
            forced=self._put(forced), forced_at=self._put(at), waiting=self._put(np.zeros_like(waiting))
        )


def bucket(length: int, floor: int) -> int:
    """The smallest of floor, 3/2 floor, 2 floor, 3 floor, 4 floor, … that is ≥ length, whole numbers only."""
    size = floor
    while size < length:
        size = size * 3 // 2 if size % 2 == 0 and size * 3 // 2 >= length else size * 2
    return size


@partial(jax.jit, static_argnames=("capacity", "config", "compute", "mesh"))
def _prefill(
    params: Params,
    tokens: jax.Array,
    lengths: jax.Array,
    capacity: int,
    config: GPTConfig,
    compute: Compute,
    mesh: Mesh | None,
) -> tuple[jax.Array, Cache]:
    return prefill(params, tokens, lengths, capacity, config, compute, mesh)


_logits = jax.jit(logits, static_argnames="config")


@partial(jax.jit, static_argnames=("num_samples", "new"))
def _start(
    stream: jax.Array,
    cache: Cache,
    tokens: jax.Array,
    lengths: jax.Array,
    identities: jax.Array,
    seed: int,
    num_samples: int,
    new: int,
) -> _State:
    """The state before the first new token: each prompt's row num_samples times, neighbours of each other."""
    stream, cache, tokens, lengths = jax.tree.map(
        lambda leaf: jnp.repeat(leaf, num_samples, axis=0), (stream, cache, tokens, lengths)
    )
    rows = tokens.shape[0]
    no = jnp.zeros(rows, bool)
    root = jax.random.key(seed)
    keys = jax.vmap(lambda pair: jax.random.fold_in(jax.random.fold_in(root, pair[0]), pair[1]))(identities)
    return _State(
        step=jnp.int32(0),
        cache=cache,
        stream=stream,
        last=jnp.take_along_axis(tokens, (lengths - 1)[:, None], axis=1)[:, 0],
        lengths=lengths,
        written=jnp.full((rows, new), -1, jnp.int32),
        was_forced=jnp.zeros((rows, new), bool),
        done=no,
        in_call=no,
        waiting=no,
        forced=jnp.full((rows, MAX_FORCED), -1, jnp.int32),
        forced_at=jnp.zeros(rows, jnp.int32),
        keys=keys,
    )


def draw(
    params: Params,
    stream: jax.Array,
    config: GPTConfig,
    keys: jax.Array,
    temperature: jax.Array,
    top_p: jax.Array,
    sampling: Sampling,
) -> jax.Array:
    """The next token int32 [rows] after stream [rows, n_embd]; see `choose`. A greedy choice needs no softcap, which
    keeps the order."""
    raw = raw_logits(params, stream, config)
    return choose(raw if sampling.greedy else softcapped(raw, config), keys, temperature, top_p, sampling)


@partial(jax.jit, static_argnames=("config", "compute", "sampling"), donate_argnames="state")
def _decode(
    params: Params,
    state: _State,
    until: jax.Array,
    stop: jax.Array,
    markers: jax.Array,
    temperature: jax.Array,
    top_p: jax.Array,
    config: GPTConfig,
    compute: Compute,
    sampling: Sampling,
) -> _State:
    """Write tokens until step `until`, until every row is done, or until a row waits for its tool."""

    def going(state: _State) -> jax.Array:
        return (state.step < until) & ~jnp.all(state.done) & ~jnp.any(state.waiting)

    def step(state: _State) -> _State:
        keys = jax.vmap(jax.random.fold_in, (0, None))(state.keys, state.step)
        sampled = draw(params, state.stream, config, keys, temperature, top_p, sampling)
        queued = jnp.take_along_axis(state.forced, state.forced_at[:, None], axis=1, mode="fill", fill_value=-1)
        is_forced = (queued[:, 0] >= 0) & ~state.done
        token = jnp.where(is_forced, queued[:, 0], sampled)
        in_call = jnp.where(token == markers[0], True, state.in_call & (token != markers[1]))
        stream, cache = extend(params, state.cache, token, state.last, state.lengths + state.step, config, compute)
        return _State(
            step=state.step + 1,
            cache=cache,
            stream=stream,
            last=token,
            lengths=state.lengths,
            written=state.written.at[:, state.step].set(jnp.where(state.done, -1, token)),
            was_forced=state.was_forced.at[:, state.step].set(is_forced),
            done=state.done | jnp.any(token[:, None] == stop, axis=1),
            in_call=in_call,
            waiting=state.in_call & (token == markers[1]) & ~state.done,
            forced=state.forced,
            forced_at=state.forced_at + is_forced,
            keys=state.keys,
        )

    return jax.lax.while_loop(going, step, state)


def _completions(state: _State, prompts: int, num_samples: int) -> list[list[Completion]]:
    written, was_forced, done = (np.asarray(a) for a in (state.written, state.was_forced, state.done))
    found = []
    for row in range(prompts * num_samples):
        length = int(np.count_nonzero(written[row] >= 0))
        end = length - 1 if done[row] else length  # a row is done by its stop token, which is not part of the text
        found.append(Completion(written[row, :end].tolist(), was_forced[row, :end].tolist(), bool(done[row])))
    return [found[at : at + num_samples] for at in range(0, len(found), num_samples)]

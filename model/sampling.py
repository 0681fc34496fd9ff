"""Choosing the next token of every row from its logits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Sampling(NamedTuple):
    """How tokens are drawn. Hashable: what changes the shape of the work is part of the compiled program."""

    greedy: bool = True
    top_k: int | None = None
    nucleus: bool = False  # whether top_p is below 1


def choose(
    logits: jax.Array, keys: jax.Array, temperature: jax.Array, top_p: jax.Array, sampling: Sampling
) -> jax.Array:
    """int32 [rows] drawn from logits float32 [vocab, rows], row i with its own keys[i].

    Order of the cuts: temperature, the top_k most likely, then of these the fewest whose probability
    together reaches top_p (Holtzman et al., arXiv 1904.09751); the most likely token always stays. Of
    equally likely tokens a greedy choice takes the first.
    """
    if sampling.greedy:
        return first_of_largest(logits)
    logits = logits.T / temperature
    if sampling.top_k is None and not sampling.nucleus:
        return _draw(keys, logits)
    # Sorted candidates, most likely first; the draw is over ranks and then translated to tokens.
    vocab = logits.shape[-1]
    ranked, tokens = jax.lax.top_k(logits, min(sampling.top_k or vocab, vocab))
    if sampling.nucleus:
        probabilities = jax.nn.softmax(ranked, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        ranked = jnp.where((before < top_p).at[..., 0].set(True), ranked, -jnp.inf)
    rank = _draw(keys, ranked)
    return jnp.take_along_axis(tokens, rank[:, None], axis=-1)[:, 0].astype(jnp.int32)


def first_of_largest(logits: jax.Array) -> jax.Array:
    """argmax over the first axis, int32, by two maxima of floats: XLA vectorises these on a CPU, unlike argmax.

    Indices are exact in float32 up to 2²⁴; a column that holds NaN gives the last index.
    """
    size = logits.shape[0]
    left = jnp.arange(size, 0, -1, dtype=jnp.float32)[:, None]  # how many indices are left from each one on
    best = jnp.max(jnp.where(logits == jnp.max(logits, axis=0), left, 1.0), axis=0)
    return size - best.astype(jnp.int32)


def _draw(keys: jax.Array, logits: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)

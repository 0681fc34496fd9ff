"""Bits per byte: a loss that does not depend on the tokenizer.

The mean loss per token falls when the vocabulary grows, only because each token then stands for more text. Dividing the
summed loss by the number of *bytes* that the predicted tokens stand for removes that. Two conventions, both nanochat's:

* A special token stands for no text, so its length is 0 bytes, and its loss is left out together with it.
* A token may be an invalid piece of UTF-8 (half of a character). It counts as the raw bytes that it is made of,
  never as the replacement character that decoding it alone would give (3 bytes, too many).

The byte lengths therefore come from the tokenizer's table `token_bytes`, int32 [vocab], and never from decoded text.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


def nats_and_bytes(token_losses: jax.Array, targets: jax.Array, token_bytes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum one batch on the device, inside or outside `jit`.

    token_losses: [...] cross entropy in nats of each target.
    targets:      int [...] token ids of the same shape; negative means "not a target".
    token_bytes:  int32 [vocab], raw bytes of each token, 0 for special tokens.

    Returns the nats (float32 scalar) and the bytes (int32 scalar) of the targets that stand for text. Add them up
    over batches on the host, in Python numbers: a float32 running sum would lose the small contributions.
    """
    lengths = jnp.where(targets >= 0, jnp.asarray(token_bytes)[jnp.maximum(targets, 0)], 0)
    nats = jnp.where(lengths > 0, token_losses.astype(jnp.float32), 0.0)
    return nats.sum(), lengths.astype(jnp.int32).sum()


def bits_per_byte(total_nats: float, total_bytes: int) -> float:
    """Convert a summed loss in nats over `total_bytes` bytes of text to bits per byte.

    Raises ValueError if there is no text at all: the quotient would be a number that means nothing.
    """
    if total_bytes <= 0:
        raise ValueError("bits per byte needs at least one target token that stands for text, and there was none")
    return float(total_nats) / (math.log(2) * int(total_bytes))

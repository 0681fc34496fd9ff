"""Bits per byte against a count by hand, with tokens that are pieces of characters."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.bpb import bits_per_byte, nats_and_bytes

# "é😀" is c3 a9 f0 9f 98 80. Token 2 is the first half of é, 3 its second half glued to the first byte of the emoji:
# neither is valid UTF-8, and decoded alone each would count as replacement characters of 3 bytes.
PIECES = [b"", b"a ", b"\xc3", b"\xa9\xf0", b"\x9f\x98\x80", b"end"]
TOKEN_BYTES = np.array([len(piece) for piece in PIECES], np.int32)  # token 0 is special
TEXT = "a é😀a end"


def test_pieces_of_characters_count_as_the_bytes_they_are():
    targets = np.array([[1, 2, 3, 4, 1, 5]])
    assert b"".join(PIECES[t] for t in targets[0]).decode() == TEXT
    losses = np.array([[0.5, 1.0, 2.0, 0.25, 0.5, 3.0]], np.float32)
    nats, count = nats_and_bytes(jnp.asarray(losses), jnp.asarray(targets), TOKEN_BYTES)
    assert int(count) == len(TEXT.encode())
    assert bits_per_byte(float(nats), int(count)) == pytest.approx(7.25 / math.log(2) / len(TEXT.encode()))


def test_special_tokens_and_ignored_targets_leave_neither_nats_nor_bytes():
    losses = jnp.array([[9.0, 1.0, 9.0, 2.0]])
    nats, count = nats_and_bytes(losses, jnp.array([[0, 1, -1, 5]]), TOKEN_BYTES)
    assert (float(nats), int(count)) == (3.0, 5)


def test_sums_are_float32_and_batches_add_up_inside_jit():
    rng = np.random.default_rng(0)
    targets = rng.integers(-1, len(PIECES), (4, 32))
    losses = rng.random((4, 32)).astype(np.float32)
    whole = jax.jit(nats_and_bytes)(losses, targets, TOKEN_BYTES)
    parts = [
        jax.jit(nats_and_bytes)(losses[r : r + 1].astype(jnp.bfloat16), targets[r : r + 1], TOKEN_BYTES)
        for r in range(4)
    ]
    assert whole[0].dtype == parts[0][0].dtype == jnp.float32
    assert int(whole[1]) == sum(int(b) for _, b in parts) == sum(len(PIECES[t]) for t in targets.flat if t > 0)
    assert float(whole[0]) == pytest.approx(sum(float(n) for n, _ in parts), rel=1e-2)


def test_no_text_is_an_error():
    with pytest.raises(ValueError, match="at least one target"):
        bits_per_byte(1.0, 0)

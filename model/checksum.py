"""A checksum for every row of tokens, the same number in NumPy when packing and in XLA when training.

The packer stores the checksums beside the rows; the training step computes them again from the rows that its
loss has read, and the loop compares. Each word is mixed with its position before the sum, so a flipped token, two
swapped tokens and a row in another row's place all change it. The mixing is MurmurHash3's 32-bit finalizer
(public domain).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def row_checksums(rows: Any) -> Any:
    """Checksums uint32 [...] of integer rows [..., seq_len + 1], NumPy or JAX; the integer type does not matter.

    Negative words (tokens that are no target) count as their two's complement in 32 bits.
    """
    position = np.arange(1, rows.shape[-1] + 1, dtype=np.uint32) * np.uint32(0x9E3779B9)
    x = rows.astype("uint32") + position
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    x = x ^ (x >> np.uint32(16))
    return x.sum(axis=-1, dtype="uint32")


def mismatches(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Indices [n, ndim] where two arrays of checksums differ, in order; n = 0 when every row is the right one."""
    expected, got = np.asarray(expected), np.asarray(got)
    if expected.shape != got.shape:
        raise ValueError(f"expected has shape {expected.shape} and got {got.shape}: compare the rows of one step")
    return np.argwhere(expected != got)

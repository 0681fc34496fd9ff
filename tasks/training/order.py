"""A seeded order of n rows that is computed, not stored.

`row_at(position)` is a bijection of each epoch [e·n, (e+1)·n) onto [0, n), the same on every machine, Python
and NumPy version, and costs the same for position 0 and position 10⁹. It is a four-round Feistel network over
the smallest even number of bits that holds n, applied again while a value falls outside [0, n) (cycle walking
[Black and Rogaway 2002]; the domain is under 4·n, so fewer than four passes on average).

Why not `numpy.random.Generator.permutation`: its stream may change between NumPy versions (NEP 19), which
would make a resumed run see some rows twice and others never, and each epoch would hold 8 bytes a row.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

_ROUNDS = 4


def _mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser [Steele, Lea, Flood 2014] of uint64: each input bit reaches each output bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@dataclass(frozen=True)
class RowOrder:
    """The order in which a run reads `n_rows` rows, epoch after epoch; another permutation in each epoch."""

    n_rows: int
    seed: int

    def row_at(self, positions: np.ndarray) -> np.ndarray:
        """Row indices int64 for run positions int64 (any shape); position p is in epoch p // n_rows."""
        positions = np.asarray(positions, dtype=np.int64)
        rows = np.empty_like(positions)
        epochs = positions // self.n_rows
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self._permute(positions[here] % self.n_rows, int(epoch))
        return rows

    def _permute(self, values: np.ndarray, epoch: int) -> np.ndarray:
        half = np.uint64(max(1, ((self.n_rows - 1).bit_length() + 1) // 2))
        keys = _round_keys(self.seed, epoch)
        out = _feistel(values.astype(np.uint64), half, keys)
        while (outside := out >= self.n_rows).any():
            out[outside] = _feistel(out[outside], half, keys)
        return out.astype(np.int64)


def _round_keys(seed: int, epoch: int) -> np.ndarray:
    digest = hashlib.sha256(f"encore row order/{seed}/{epoch}".encode()).digest()
    return np.frombuffer(digest, dtype="<u8")[:_ROUNDS].astype(np.uint64)


def _feistel(values: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    """One pass over numbers of 2·half bits; a permutation of them whatever the keys are."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right

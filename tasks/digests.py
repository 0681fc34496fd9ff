"""A set of document digests that stays small: 16 bytes a digest, where a Python set takes a hundred."""

import hashlib
from collections.abc import Iterable

import numpy as np

DIGEST_BYTES = 16
_DTYPE = f"S{DIGEST_BYTES}"  # compares like the bytes: all have one length, so padding with NUL changes nothing


def digest(text: bytes) -> bytes:
    """128 bits of BLAKE2b: two different texts share one with probability 2⁻¹²⁸."""
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


class DigestSet:
    """Which digests have been seen, in sorted runs; each run is at least twice as long as the next.

    A batch is looked up by bisection in every run and becomes the newest run; runs that have come too close in
    length are merged, so each digest is moved O(log n) times.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, digests: Iterable[bytes]) -> np.ndarray:
        """bool [n]: True for each digest that was neither there nor earlier in the batch; all are there then."""
        batch = np.array(list(digests), dtype=_DTYPE)
        unique, first = np.unique(batch, return_index=True)
        seen = np.zeros(len(unique), dtype=bool)
        for run in self._runs:
            place = np.minimum(np.searchsorted(run, unique), len(run) - 1)
            seen |= run[place] == unique
        is_new = np.zeros(len(batch), dtype=bool)
        is_new[first[~seen]] = True
        self._append(unique[~seen])
        return is_new

    def _append(self, run: np.ndarray) -> None:
        if not len(run):
            return
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs.append(run)

"""Rows of packed shards, in the order of a run.

Batch s of a run is a pure function of (shards, seed, batch size, s): rows [s·B, (s+1)·B) of a seeded order.
Nothing is remembered between batches, so a resume at any step, on any number of devices, reads exactly the
rows that an uninterrupted run would have read. Every array handed out is fresh and read-only: a device may
alias host memory (jax#37830), so no buffer is ever filled twice.
"""

from __future__ import annotations

import json
import math
import queue
import socket
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.stage import InputError
from tasks.store.roots import StoreUnavailable
from tasks.training.order import RowOrder

PATIENCE_SECONDS = 600.0  # that a batch may take to be read; a disk that answers needs milliseconds


@dataclass(frozen=True)
class Batch:
    """What one optimizer step trains on.

    rows: int32 [grad_accum_steps, rows, seq_len + 1], read-only; a word w < 0 is token ~w that is no target.
    sums: uint32 [grad_accum_steps, rows], the checksum stored beside each row when it was packed.
    indices: int64 [grad_accum_steps, rows], the place of each row in its split.
    """

    step: int
    rows: np.ndarray
    sums: np.ndarray
    indices: np.ndarray


class RowSet:
    """The rows of one split, memory-mapped over its shard files."""

    def __init__(self, shards: list[tuple[str, np.ndarray, np.ndarray]]) -> None:
        """`shards`: (file name, rows [rows, seq_len + 1], checksums uint32 [rows]), in order."""
        for name, rows, sums in shards:
            if len(rows) != len(sums):
                raise InputError(f"{name} holds {len(rows)} rows but {len(sums)} checksums: repair its shards.")
        self._shards = shards
        self._starts = np.cumsum([0] + [len(rows) for _, rows, _ in shards])

    @classmethod
    def open(cls, directory: Path, split: str) -> RowSet:
        """The split `train` or `val` of a shards or conversations directory; nothing is read into memory."""
        index = json.loads((directory / "shards.json").read_text())
        return cls([_map(directory, entry["name"]) for entry in index[split] if entry["rows"]])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def n_shards(self) -> int:
        return len(self._shards)

    @property
    def seq_len(self) -> int:
        """Tokens of a row's input; a row itself is one longer."""
        return self._shards[0][1].shape[1] - 1

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fresh, read-only copies: rows int32 [*indices, seq_len + 1] and checksums uint32 [*indices]."""
        rows = np.empty((indices.size, self.seq_len + 1), dtype=np.int32)
        sums = np.empty(indices.size, dtype=np.uint32)
        flat = indices.reshape(-1)
        shard_of = np.searchsorted(self._starts, flat, side="right") - 1
        for shard in np.unique(shard_of):
            here = shard_of == shard
            local = flat[here] - self._starts[shard]
            _, shard_rows, shard_sums = self._shards[shard]
            rows[here], sums[here] = shard_rows[local], shard_sums[local]
        rows.flags.writeable = sums.flags.writeable = False
        return rows.reshape(*indices.shape, -1), sums.reshape(indices.shape)

    def name(self, index: int) -> str:
        """Where a row lies, for messages: `train_00003.rows.npy row 17`."""
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        return f"{self._shards[shard][0]} row {index - int(self._starts[shard])}"


def _map(directory: Path, name: str) -> tuple[str, np.ndarray, np.ndarray]:
    rows = np.load(directory / f"{name}.rows.npy", mmap_mode="r")
    return f"{name}.rows.npy", rows, np.load(directory / f"{name}.sums.npy")


@dataclass(frozen=True)
class Loader:
    """The batches of a run: `batch(s)` for any s, in any order, on any machine."""

    rows: RowSet
    seed: int
    grad_accum_steps: int
    micro_rows: int  # rows of one micro-batch, over all devices

    @property
    def batch_rows(self) -> int:
        return self.grad_accum_steps * self.micro_rows

    def batch(self, step: int) -> Batch:
        """Rows [step·B, (step + 1)·B) of the seeded order, split into micro-batches in that order."""
        positions = np.arange(step * self.batch_rows, (step + 1) * self.batch_rows, dtype=np.int64)
        indices = RowOrder(len(self.rows), self.seed).row_at(positions)
        indices = indices.reshape(self.grad_accum_steps, self.micro_rows)
        rows, sums = self.rows.take(indices)
        return Batch(step, rows, sums, indices)

    def batches(
        self, start: int, stop: int, depth: int = 2, patience: float = PATIENCE_SECONDS
    ) -> Generator[Batch, None, None]:
        """Batches [start, stop), read up to `depth` ahead by a thread that ends with the iterator.

        The thread decides when a batch is read, never what is in it. Its errors are raised here, and a batch that does
        not come within `patience` seconds is StoreUnavailable: other hosts would wait for this one without knowing.
        """
        ready: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=depth)
        leaving = threading.Event()

        def offer(item: Batch | BaseException) -> bool:
            while not leaving.is_set():
                try:
                    ready.put(item, timeout=0.1)
                except queue.Full:
                    continue
                return True
            return False

        def read() -> None:
            try:
                for step in range(start, stop):
                    if not offer(self.batch(step)):
                        return
            except BaseException as error:  # handed over, so that the loop fails and not the thread
                offer(error)

        thread = threading.Thread(target=read, name="batch-reader", daemon=True)
        thread.start()
        try:
            for _ in range(start, stop):
                try:
                    item = ready.get(timeout=patience)
                except queue.Empty:
                    raise StoreUnavailable(
                        f"The rows of a step did not come within {patience:.0f} s on {socket.gethostname()}: its disk "
                        "does not answer, and a job of several hosts would wait for it. Run the same command elsewhere."
                    ) from None
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            leaving.set()
            thread.join(1.0)


def check_enough_rows(rows: RowSet, needed: int, allow_repeat: bool, remedy: str) -> None:
    """Raises InputError when a run needs more rows than exist and may not repeat them.

    Called before anything is compiled. `remedy` says which settings shorten the run or bring more data.
    """
    have = len(rows)
    if needed <= have or allow_repeat:
        return
    missing = math.ceil((needed - have) * rows.n_shards / have)
    raise InputError(
        f"The run needs {needed:,} rows of {rows.seq_len:,} tokens and {have:,} exist in {rows.n_shards} "
        f"shards: about {missing:,} more shards of this size are needed. {remedy}"
    )

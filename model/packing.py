"""Documents and conversations to rows of seq_len + 1 tokens, each row starting with BOS.

Both packers are best fit: of the waiting pieces that fit what is left of a row, the longest goes in, the
oldest of equally long ones. They differ where nothing fits:

* `pack_documents` (pretraining, as nanochat's BOS-aligned loader) crops the shortest waiting document to what
  is left and discards its rest. Every row is full; what cropping costs is counted.
* `pack_conversations` (SFT) pads the row. No conversation is ever cropped.

Pure and deterministic: the rows depend on the pieces and their order alone.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

Piece = TypeVar("Piece")


@dataclass
class PackStats:
    """What packing did; every token includes the BOS of its piece."""

    pieces: int = 0  # documents or conversations placed, cropped ones included
    tokens: int = 0  # tokens of those pieces before cropping
    cropped_pieces: int = 0
    cropped_tokens: int = 0  # discarded by cropping
    unfinished_tokens: int = 0  # of the last row, which no document was left to fill; it is not written
    padding_tokens: int = 0
    target_tokens: int = 0  # words a model is trained to predict
    rows: int = 0

    def add(self, other: "PackStats") -> None:
        """Adds the counts of another part of the same job."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class BestFit(Generic[Piece]):
    """Waiting pieces by length; taking one costs O(log lengths), not a scan of the buffer."""

    _by_length: dict[int, deque[Piece]] = field(default_factory=dict)
    _lengths: list[int] = field(default_factory=list)  # sorted, distinct
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def push(self, length: int, piece: Piece) -> None:
        waiting = self._by_length.get(length)
        if waiting is None:
            waiting = self._by_length[length] = deque()
            insort(self._lengths, length)
        waiting.append(piece)
        self._count += 1

    def pop_fitting(self, room: int) -> Piece | None:
        """The longest piece of at most `room` tokens, the oldest among equals, or None."""
        place = bisect_right(self._lengths, room)
        return self._pop(place - 1) if place else None

    def pop_shortest(self) -> Piece:
        """The shortest piece, the oldest among equals; IndexError when none waits."""
        return self._pop(0)

    def _pop(self, place: int) -> Piece:
        length = self._lengths[place]
        waiting = self._by_length[length]
        piece = waiting.popleft()
        if not waiting:
            del self._by_length[length], self._lengths[place]
        self._count -= 1
        return piece


def pack_documents(
    documents: Iterable[Sequence[int] | np.ndarray],
    seq_len: int,
    bos: int,
    buffer_docs: int = 1000,
    stats: PackStats | None = None,
) -> Iterator[np.ndarray]:
    """Full rows int32 [seq_len + 1] of token ids; `documents` come without BOS, which is put before each.

    A row that the last documents cannot fill is not written: a short row would need padding, and padding in
    pretraining is a target that nobody wrote.
    """
    stats = PackStats() if stats is None else stats
    source = iter(documents)
    waiting: BestFit[np.ndarray] = BestFit()
    capacity = seq_len + 1
    while True:
        row = np.empty(capacity, dtype=np.int32)
        filled = 0
        while filled < capacity:
            _refill(waiting, source, buffer_docs)
            if not waiting:
                stats.unfinished_tokens += filled
                return
            room = capacity - filled
            document = waiting.pop_fitting(room - 1)
            if document is None:
                document = waiting.pop_shortest()
            kept = min(len(document) + 1, room)
            row[filled] = bos
            row[filled + 1 : filled + kept] = document[: kept - 1]
            filled += kept
            discarded = len(document) + 1 - kept
            stats.pieces += 1
            stats.tokens += len(document) + 1
            stats.cropped_pieces += discarded > 0
            stats.cropped_tokens += discarded
        stats.rows += 1
        stats.target_tokens += seq_len
        yield row


def _refill(waiting: BestFit[np.ndarray], source: Iterator[Sequence[int] | np.ndarray], buffer_docs: int) -> None:
    while len(waiting) < buffer_docs:
        document = next(source, None)
        if document is None:
            return
        waiting.push(len(document), np.asarray(document, dtype=np.int32))


def pack_conversations(
    conversations: Iterable[tuple[Sequence[int] | np.ndarray, Sequence[int] | np.ndarray]],
    seq_len: int,
    bos: int,
    buffer_docs: int = 100,
    stats: PackStats | None = None,
) -> Iterator[np.ndarray]:
    """Rows int32 [seq_len + 1] of words from (ids, mask) pairs that already start with BOS.

    A word w ≥ 0 is token w, which the model is trained to predict (mask 1); a word w < 0 is token ~w, which
    it is not. Padding is ~bos. Raises ValueError for a conversation longer than a row: what to do with it is
    a decision of the caller, and a piece that never fits would wait for ever and clog the buffer.
    """
    stats = PackStats() if stats is None else stats
    source = iter(conversations)
    waiting: BestFit[np.ndarray] = BestFit()
    capacity = seq_len + 1
    while True:
        row = np.full(capacity, ~bos, dtype=np.int32)
        filled = 0
        while True:
            while len(waiting) < buffer_docs and (conversation := next(source, None)) is not None:
                words = _words(*conversation)
                if len(words) > capacity:
                    raise ValueError(f"a conversation of {len(words)} tokens does not fit a row of {capacity}")
                waiting.push(len(words), words)
            piece = waiting.pop_fitting(capacity - filled)
            if piece is None:
                break
            row[filled : filled + len(piece)] = piece
            filled += len(piece)
            stats.pieces += 1
            stats.tokens += len(piece)
        if not filled:
            return
        stats.rows += 1
        stats.padding_tokens += capacity - filled
        stats.target_tokens += int((row[1:] >= 0).sum())
        yield row


def _words(ids: Sequence[int] | np.ndarray, mask: Sequence[int] | np.ndarray) -> np.ndarray:
    tokens = np.asarray(ids, dtype=np.int32)
    if not len(tokens) or len(tokens) != len(mask):
        raise ValueError(f"{len(tokens)} tokens came with a mask of {len(mask)}")
    return np.where(np.asarray(mask, dtype=bool), tokens, ~tokens)

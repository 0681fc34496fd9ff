"""Questions of any length into batches of few shapes.

The options of a question share everything up to where they differ, often a thousand few-shot tokens. A `Row` holds that
prefix once and the options behind it as *branches*, one after the other; `model.branches` computes the prefix once
and lets each branch see the prefix and itself only. Rows of similar length go into one `Batch` of one of very few
shapes, so that a whole evaluation compiles about three programs however many lengths it meets. That shapes are far
apart costs room and no time, since `model.branches` stops where the longest row of the batch ends.

Pure NumPy: what is planned here depends on the lengths alone, and each row's result on nothing but the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from model.score import Question, common_prefix

ROOMS = ((512, 256), (2048, 512), (8192, 2048), (32768, 8192), (131072, 32768))
"""(P, S) of each shape: room for a prefix and for the branches behind it, in tokens."""


@dataclass(frozen=True)
class Row:
    """A prefix with the options that continue it. `options` are (number, ids, start): the option's number in its
    question, its ids after the prefix, and the position in those ids of the first scored token (≥ 1)."""

    question: int  # position in the list that was planned
    prefix: tuple[int, ...]  # its last tokens, as far back as any of them can matter
    length: int  # of the whole prefix, and so the position of an option's first token
    options: tuple[tuple[int, tuple[int, ...], int], ...]

    @property
    def branch_tokens(self) -> int:
        """Tokens fed behind the prefix: an option's last token is only ever predicted."""
        return sum(len(ids) - 1 for _, ids, _ in self.options)


@dataclass(frozen=True)
class Batch:
    """Host arrays of one call, all int32. R rows, P prefix tokens, S branch tokens, padding included.

    prefix [R, P] has its tokens at the right end, `kept` [R] of them out of `length` [R] that the prefix has. For the
    branches, each [R, S]: tokens, the token before each one (`previous`), its position in its sequence, the number of
    its branch in the row (−1: padding), and the target (−1: not scored). `rows` says what the rows are: the batch may
    end in rows of padding alone.
    """

    prefix: np.ndarray
    kept: np.ndarray
    length: np.ndarray
    tokens: np.ndarray
    previous: np.ndarray
    positions: np.ndarray
    branch: np.ndarray
    targets: np.ndarray
    rows: tuple[Row, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(R, P, S): batches of one shape share a compiled program."""
        return (*self.prefix.shape, self.tokens.shape[1])

    def spans(self) -> Iterator[tuple[int, int, int, slice]]:
        """(row in the batch, question, option, columns of its scored targets) of every option in the batch."""
        for r, row in enumerate(self.rows):
            at = 0
            for option, ids, start in row.options:
                yield r, row.question, option, slice(at + start - 1, at + len(ids) - 1)
                at += len(ids) - 1


def rows_of(number: int, question: Question, reach: int) -> list[Row]:
    """The rows of a question: one for all options if that saves tokens, else one for each.

    A prefix ends before the token in front of the first scored one, whose output is what predicts it. Options that
    differ in other tokens as well (contexts of a schema, options cut to another length) have those in their branches.
    reach: how many tokens before it a token can depend on, through all layers.
    """
    ends = {k: start - 1 for k, start in enumerate(question.starts) if start < question.ends[k]}
    if not ends:
        return []
    shared = min(common_prefix(question.options), *ends.values())
    saved, moved = shared * (len(ends) - 1), sum(end - shared for end in ends.values())
    groups = [(shared, list(ends))] if saved >= moved else [(end, [k]) for k, end in ends.items()]
    return [
        Row(
            number,
            question.options[options[0]][max(0, length - reach) : length],
            length,
            tuple((k, question.options[k][length:], question.starts[k] - length) for k in options),
        )
        for length, options in groups
    ]


def room(row: Row) -> tuple[int, int]:
    """(P, S) of the smallest shape that holds the row; ValueError if none does."""
    for widths in ROOMS:
        if len(row.prefix) <= widths[0] and row.branch_tokens <= widths[1]:
            return widths
    raise ValueError(f"a prompt of {row.length + row.branch_tokens:,} tokens fits none of the shapes {ROOMS}")


def plan(questions: Sequence[Question], batch_tokens: int, reach: int, row_multiple: int = 1) -> Iterator[Batch]:
    """Sort the questions into batches with room for about `batch_tokens` tokens, long ones first.

    reach: as of `rows_of`. row_multiple: number of devices that a batch's rows are spread over. A last batch is filled
    up with empty rows rather than made smaller: they cost less than one more compilation.
    """
    shapes: dict[tuple[int, int], list[Row]] = {}
    for number, question in enumerate(questions):
        for row in rows_of(number, question, reach):
            shapes.setdefault(room(row), []).append(row)
    for widths, rows in sorted(shapes.items(), reverse=True):
        size = max(1, batch_tokens // (sum(widths) * row_multiple)) * row_multiple
        # the rows of a batch wait for its longest prefix and its longest branches
        rows.sort(key=lambda row: (len(row.prefix) + row.branch_tokens, row.branch_tokens), reverse=True)
        for at in range(0, len(rows), size):
            yield pack(rows[at : at + size], size, *widths)


def pack(rows: Sequence[Row], size: int, prefix_width: int, branch_width: int) -> Batch:
    """Write `rows` into arrays of `size` rows."""
    prefix = np.zeros((size, prefix_width), np.int32)
    kept, length = np.zeros(size, np.int32), np.zeros(size, np.int32)
    tokens, previous, positions = (np.zeros((size, branch_width), np.int32) for _ in range(3))
    branch, targets = (np.full((size, branch_width), -1, np.int32) for _ in range(2))
    for r, row in enumerate(rows):
        kept[r], n = len(row.prefix), row.length
        length[r] = n
        prefix[r, prefix_width - len(row.prefix) :] = row.prefix
        at = 0
        for k, (_, ids, start) in enumerate(row.options):
            here = slice(at, at + len(ids) - 1)
            tokens[r, here] = ids[:-1]
            previous[r, here] = (row.prefix[-1] if n else 0, *ids[:-2])
            positions[r, here] = np.arange(n, n + len(ids) - 1)
            branch[r, here] = k
            targets[r, at + start - 1 : here.stop] = ids[start:]
            at = here.stop
    return Batch(prefix, kept, length, tokens, previous, positions, branch, targets, tuple(rows))

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.packing import BestFit, PackStats, pack_conversations, pack_documents

BOS = 0

lengths = st.lists(st.integers(0, 40), max_size=60)
buffers = st.integers(1, 12)
seq_lens = st.integers(1, 24)
few = settings(max_examples=60, deadline=None)


def documents(sizes: list[int]) -> list[list[int]]:
    """Documents whose tokens are all different, so that each can be traced in the rows."""
    starts = np.cumsum([1, *sizes])
    return [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=False)]


def pieces_of(row: np.ndarray) -> list[list[int]]:
    cuts = np.flatnonzero(row == BOS)
    return [row[a + 1 : b].tolist() for a, b in zip(cuts, [*cuts[1:], len(row)], strict=True)]


def naive_rows(docs: list[list[int]], seq_len: int, buffer_docs: int, bos: int = BOS) -> list[list[int]]:
    """The rule by linear scan: first of the longest that fit, else first of the shortest, cropped."""
    source, buffer, rows = iter([[bos, *doc] for doc in docs]), [], []
    while True:
        row: list[int] = []
        while len(row) < seq_len + 1:
            while len(buffer) < buffer_docs and (doc := next(source, None)) is not None:
                buffer.append(doc)
            if not buffer:
                return rows
            room = seq_len + 1 - len(row)
            fitting = [i for i, doc in enumerate(buffer) if len(doc) <= room]
            if fitting:
                chosen = max(fitting, key=lambda i: (len(buffer[i]), -i))
            else:
                chosen = min(range(len(buffer)), key=lambda i: (len(buffer[i]), i))
            row += buffer.pop(chosen)[:room]
        rows.append(row)


@given(lengths, seq_lens, buffers)
@few
def test_documents_are_packed_by_best_fit(sizes, seq_len, buffer_docs):
    docs = documents(sizes)
    rows = [row.tolist() for row in pack_documents(docs, seq_len, BOS, buffer_docs)]
    assert rows == naive_rows(docs, seq_len, buffer_docs)


@given(lengths, seq_lens, buffers)
@few
def test_every_row_is_full_and_every_piece_is_the_start_of_one_document(sizes, seq_len, buffer_docs):
    docs, stats = documents(sizes), PackStats()
    rows = list(pack_documents(docs, seq_len, BOS, buffer_docs, stats))
    assert all(row.shape == (seq_len + 1,) and row.dtype == np.int32 and row[0] == BOS for row in rows)
    pieces = [piece for row in rows for piece in pieces_of(row)]
    by_start = {doc[0]: doc for doc in docs if doc}
    seen = [piece[0] for piece in pieces if piece]
    assert len(seen) == len(set(seen)), "a document was used twice"
    assert all(piece == by_start[piece[0]][: len(piece)] for piece in pieces if piece)
    placed = sum(len(row) for row in rows)
    assert placed + stats.cropped_tokens + stats.unfinished_tokens == stats.tokens
    assert stats.pieces == len(docs)
    assert stats.tokens == sum(sizes) + len(sizes)
    assert stats.rows == len(rows)


@given(st.lists(st.integers(0, 7), max_size=60), buffers)
@few
def test_a_document_is_only_cropped_where_no_waiting_one_fits(sizes, buffer_docs):
    """Where every document fits a row, only the last piece of a row can be a cropped one."""
    docs = documents(sizes)
    whole = {doc[0]: len(doc) for doc in docs if doc}
    for row in pack_documents(docs, 7, BOS, buffer_docs):
        for piece in pieces_of(row)[:-1]:
            assert not piece or len(piece) == whole[piece[0]]


@given(lengths, seq_lens, buffers)
@few
def test_packing_is_lazy_and_depends_on_the_documents_alone(sizes, seq_len, buffer_docs):
    docs = documents(sizes)
    as_lists = [row.tolist() for row in pack_documents(docs, seq_len, BOS, buffer_docs)]
    as_arrays = (np.array(doc, dtype=np.uint16) for doc in docs)
    assert [row.tolist() for row in pack_documents(as_arrays, seq_len, BOS, buffer_docs)] == as_lists


def test_rows_are_fresh_arrays():
    first, second = list(pack_documents([[1] * 9, [2] * 9], 4, BOS))
    assert not np.shares_memory(first, second)


conversations = st.lists(
    st.lists(st.tuples(st.integers(1, 99), st.integers(0, 1)), max_size=12).map(
        lambda words: ([BOS] + [token for token, _ in words], [0] + [bit for _, bit in words])
    ),
    max_size=40,
)


@given(conversations, st.integers(12, 30), buffers)
@few
def test_conversations_are_never_cropped_and_keep_their_masks(pairs, seq_len, buffer_docs):
    stats = PackStats()
    rows = list(pack_conversations(pairs, seq_len, BOS, buffer_docs, stats))
    found = []
    for row in rows:
        assert row.shape == (seq_len + 1,)
        assert row[0] == ~BOS
        tokens = np.where(row < 0, ~row, row)
        cuts = [*np.flatnonzero(tokens == BOS), len(row)]
        found += [(tokens[a:b].tolist(), (row[a:b] >= 0).astype(int).tolist()) for a, b in pairwise(cuts)]
    padding = [piece for piece in found if piece == ([BOS], [0])]
    real = [pair for pair in pairs if len(pair[0]) > 1]
    assert sorted(piece for piece in found if len(piece[0]) > 1) == sorted(real)
    assert len(padding) == stats.padding_tokens + len(pairs) - len(real)
    assert stats.pieces == len(pairs)
    assert stats.target_tokens == sum(sum(mask) for _, mask in pairs)


def test_a_conversation_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="a conversation of 9 tokens does not fit a row of 5"):
        list(pack_conversations([(list(range(9)), [0] * 9)], 4, BOS))


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(ValueError, match="3 tokens came with a mask of 2"):
        list(pack_conversations([([0, 1, 2], [0, 1])], 4, BOS))


def test_best_fit_prefers_the_longest_then_the_oldest():
    waiting: BestFit[str] = BestFit()
    for length, name in [(3, "a"), (5, "b"), (5, "c"), (9, "d")]:
        waiting.push(length, name)
    assert [waiting.pop_fitting(6), waiting.pop_fitting(6), waiting.pop_fitting(2)] == ["b", "c", None]
    assert [waiting.pop_shortest(), waiting.pop_shortest()] == ["a", "d"]
    assert len(waiting) == 0

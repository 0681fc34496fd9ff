"""The loader: batch s is a pure function of s, arrays are fresh, and a run that is too long is refused."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.stage import InputError
from tasks.training.loader import Loader, RowSet, check_enough_rows

SEQ_LEN = 4


def numbered(*sizes: int) -> RowSet:
    """A row set whose row i is [i, i, …] and whose checksum is i: shards of the given sizes."""
    total, shards = 0, []
    for number, size in enumerate(sizes):
        ids = np.arange(total, total + size)
        rows = np.repeat(ids[:, None], SEQ_LEN + 1, axis=1).astype(np.uint16)
        shards.append((f"train_{number:05d}.rows.npy", rows, ids.astype(np.uint32)))
        total += size
    return RowSet(shards)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    accum=st.integers(1, 3),
    micro=st.integers(1, 4),
    step=st.integers(0, 50),
)
def test_rows_come_with_their_own_checksums_and_indices(sizes, accum, micro, step):
    batch = Loader(numbered(*sizes), 3, accum, micro).batch(step)
    assert batch.rows.shape == (accum, micro, SEQ_LEN + 1)
    assert batch.rows.dtype == np.int32
    assert (batch.rows == batch.indices[..., None]).all()
    assert (batch.sums == batch.indices).all()


def test_the_split_into_micro_batches_does_not_change_the_rows_of_a_step():
    rows = numbered(20, 30)
    wide, narrow = Loader(rows, 0, 2, 6), Loader(rows, 0, 4, 3)
    for step in range(6):
        assert np.array_equal(wide.batch(step).indices.ravel(), narrow.batch(step).indices.ravel())


def test_iterating_from_anywhere_gives_the_same_batches():
    loader = Loader(numbered(64), 5, 2, 4)
    expected = [loader.batch(step).rows for step in range(8)]
    for start in (0, 3, 7):
        got = list(loader.batches(start, 8, depth=1))
        assert [batch.step for batch in got] == list(range(start, 8))
        assert all(np.array_equal(a.rows, b) for a, b in zip(got, expected[start:], strict=True))


def test_the_reader_thread_ends_when_the_loop_leaves_early():
    batches = Loader(numbered(64), 5, 2, 4).batches(0, 1000)
    next(batches)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "batch-reader"]


def test_an_error_of_the_reader_thread_reaches_the_loop():
    rows = numbered(8)
    rows._shards[0] = ("train_00000.rows.npy", rows._shards[0][1][:2], rows._shards[0][2])  # a file cut short
    with pytest.raises(IndexError):
        list(Loader(rows, 0, 1, 8).batches(0, 1))


def test_a_row_is_named_by_file_and_place():
    assert numbered(3, 4).name(2) == "train_00000.rows.npy row 2"
    assert numbered(3, 4).name(5) == "train_00001.rows.npy row 2"


def test_a_run_longer_than_the_data_says_how_many_shards_are_missing():
    rows = numbered(10, 10)
    check_enough_rows(rows, 20, allow_repeat=False, remedy="")
    check_enough_rows(rows, 21, allow_repeat=True, remedy="")
    with pytest.raises(InputError, match=r"needs 45 rows .* 20 exist in 2 shards: about 3 more .*Shorten"):
        check_enough_rows(rows, 45, allow_repeat=False, remedy="Shorten it.")


def test_rows_and_checksums_of_different_length_are_refused():
    with pytest.raises(InputError, match="3 rows but 2 checksums"):
        RowSet([("train_00000.rows.npy", np.zeros((3, 5)), np.zeros(2))])

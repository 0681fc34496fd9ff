"""Row checksums: one number from NumPy and from XLA, changed by every kind of wrong row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.checksum import mismatches, row_checksums


def rows(seed: int = 0, count: int = 6, length: int = 33) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50_000, (count, length)).astype(np.int32)


def test_pinned() -> None:
    """The number is stored beside shards, so it may never change."""
    assert row_checksums(np.array([[1, 2, 3], [0, 0, 0], [-1, 5, 7]], np.int32)).tolist() == [
        42852713,
        3937767629,
        4098472192,
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40))
def test_numpy_and_xla_agree(words: list[int]) -> None:
    row = np.array([words], np.int32)
    assert row_checksums(row)[0] == np.asarray(row_checksums(jnp.asarray(row)))[0]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
def test_stored_type_does_not_matter(dtype: type) -> None:
    assert np.array_equal(row_checksums(rows().astype(dtype)), row_checksums(rows()))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 32), st.integers(0, 32), st.integers(0, 15))
def test_a_flip_or_a_swap_changes_it(i: int, j: int, bit: int) -> None:
    row = rows(count=1)
    flipped, swapped = row.copy(), row.copy()
    flipped[0, i] ^= 1 << bit
    assert row_checksums(flipped) != row_checksums(row)
    swapped[0, [i, j]] = swapped[0, [j, i]]
    if row[0, i] != row[0, j]:
        assert row_checksums(swapped) != row_checksums(row)


def test_masking_a_token_changes_it() -> None:
    row = rows(count=1)
    assert row_checksums(np.where(np.arange(33) == 4, ~row, row)) != row_checksums(row)


def test_no_collisions_among_near_rows() -> None:
    base = np.zeros((20_000, 17), np.int32)
    base[np.arange(20_000), np.arange(20_000) % 17] = np.arange(20_000) // 17 + 1
    assert len(set(row_checksums(base).tolist())) >= 20_000 - 3


def test_mismatches_name_rows() -> None:
    expected = row_checksums(rows().reshape(2, 3, 33))
    got = expected.copy()
    got[1, 2] += np.uint32(1)
    assert mismatches(expected, got).tolist() == [[1, 2]]
    assert mismatches(expected, jax.device_get(expected)).shape == (0, 2)
    with pytest.raises(ValueError, match="shape"):
        mismatches(expected, got[:1])

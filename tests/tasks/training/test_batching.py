"""Micro-batches: always the whole batch, never more than fits, and an error where devices cannot share it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ConfigError
from conf.sizing import rows_in_batch
from tasks.training.batching import split_batch


@settings(max_examples=60, deadline=None)
@given(shards=st.integers(1, 8), rows=st.integers(1, 64), device_rows=st.integers(1, 100))
def test_micro_batches_make_up_the_batch(shards, rows, device_rows):
    accum, micro = split_batch(rows * shards, shards, device_rows)
    assert accum * micro == rows * shards
    assert micro % shards == 0
    assert micro // shards <= device_rows


def test_the_largest_cut_that_fits_is_taken():
    assert split_batch(64, 8, 100) == (1, 64)
    assert split_batch(64, 8, 7) == (2, 32)
    assert split_batch(6, 1, 5) == (2, 3)


def test_devices_that_cannot_share_a_batch_are_refused():
    with pytest.raises(ConfigError, match="12 rows cannot be shared evenly by 8 devices"):
        split_batch(12, 8, 4)


def test_tokens_that_make_no_whole_rows_are_refused():
    assert rows_in_batch(1024, 128) == 8
    with pytest.raises(ConfigError, match="1000 is not a multiple of seq_len=128: take 896 or 1024"):
        rows_in_batch(1000, 128)
    with pytest.raises(ConfigError, match="take 128"):
        rows_in_batch(100, 128)

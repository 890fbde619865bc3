"""Packing: every token is there once, in order, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.batch import Batch, Sequence
from hypothesis import given
from hypothesis import strategies as st


def sequence(tokens: list[int]) -> Sequence:
    ids = np.array(tokens, np.int64)
    return Sequence(ids, (ids % 2).astype(np.int32))


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=1, max_size=9))
def test_sequences_stand_end_to_end(rows):
    batch = Batch.pack([sequence(row) for row in rows])
    assert batch.input_ids.dtype == np.int64
    assert batch.token_type_ids.dtype == np.int32
    assert batch.cu_seqlens.dtype == np.int32
    assert batch.cu_seqlens[0] == 0
    assert batch.sequences == len(rows)
    assert batch.tokens == len(batch.input_ids) == sum(map(len, rows))
    assert batch.max_seqlen == max(map(len, rows))
    for index, row in enumerate(rows):
        assert batch.input_ids[batch.rows(index)].tolist() == row
        assert batch.token_type_ids[batch.rows(index)].tolist() == [token % 2 for token in row]


@pytest.mark.parametrize("rows", [[], [[1], []]])
def test_nothing_to_pack_is_an_error(rows):
    with pytest.raises(ValueError, match="wanted one or more"):
        Batch.pack([sequence(row) for row in rows])

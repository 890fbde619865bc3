"""A step's arrays cross to the device in one block, which may have room for a larger step."""

from __future__ import annotations

import numpy as np
from fusewire.models.step_batch import StepBatch, StepInput, StepLayout
from fusewire.placement import Placement
from hypothesis import given
from hypothesis import strategies as st

ARRAYS = {
    "ids": "input_ids",
    "positions": "positions",
    "logit_rows": "logit_rows",
    "_offsets": "cu_seqlens",
    "_contexts": "context_lengths",
    "_table": "block_table",
}


@st.composite
def steps(draw) -> StepBatch:
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=9))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    sequences, tokens = len(counts), sum(counts)
    return StepBatch(
        input_ids=rng.integers(1, 99, tokens),
        positions=rng.integers(1, 99, tokens).astype(np.int32),
        cu_seqlens=np.cumsum([0, *counts]).astype(np.int32),
        context_lengths=rng.integers(1, 99, sequences).astype(np.int32),
        block_table=rng.integers(1, 99, (sequences, draw(st.integers(1, 7)))).astype(np.int32),
        logit_rows=rng.integers(1, 99, draw(st.integers(0, tokens))),
    )


@given(step=steps(), more=st.tuples(*[st.integers(0, 5)] * 4))
def test_a_block_holds_the_step_and_nobody_behind_it(step, more):
    sizes = step.tokens, step.sequences, step.block_table.shape[1], step.logit_rows.size
    layout = StepLayout(*(size + room for size, room in zip(sizes, more, strict=True)))
    place = Placement()
    there = StepInput(layout, place.exact(layout.pack(step), np.uint8))
    for name, array in ARRAYS.items():
        held, packed = getattr(there, name).numpy(), getattr(step, array)
        wanted = np.full_like(held, step.tokens if array == "cu_seqlens" else 0)
        wanted[tuple(slice(size) for size in packed.shape)] = packed
        np.testing.assert_array_equal(held, wanted)


def test_each_array_begins_where_vectors_do():
    fields = StepLayout(tokens=3, sequences=3, pages=5, logit_rows=1).block.fields
    assert all(begin % 16 == 0 for _, begin, *_ in fields.values())

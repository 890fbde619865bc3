"""The arrays packed for a forward or a step are read back unchanged from the block."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fusewire import kernels
from fusewire.models.inputs import Inputs, Layout, packed_layout
from fusewire.models.step_batch import SourceTable, StepBatch, step_layout
from fusewire.placement import Placement
from hypothesis import given
from hypothesis import strategies as st

from tests.places import CPU, GPU_FP32

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=9)
ROOM = st.integers(0, 5)


def numbers(seed: int, *shape: int, dtype: type = np.int32) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 2**31 - 1, shape).astype(dtype)


def packed(lengths: list[int]) -> dict[str, np.ndarray]:
    tokens = sum(lengths)
    return {
        "input_ids": numbers(0, tokens, dtype=np.int64) << 20,
        "positions": numbers(1, tokens),
        "token_type_ids": numbers(2, tokens),
        "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32),
    }


def check(layout: Layout, arrays: dict[str, np.ndarray], place: Placement) -> None:
    inputs = Inputs.upload(layout, arrays, place)
    for name, (_, _, shape) in layout.places.items():
        wanted = np.zeros(shape, np.int64)
        array = arrays.get(name, wanted[:0])
        if name == "cu_seqlens":
            # Sequences beyond the batch are empty: they begin and end at the end of the tokens.
            wanted += array[-1]
        wanted[tuple(map(slice, array.shape))] = array
        np.testing.assert_array_equal(place.numpy(inputs[name]), wanted)


@given(COUNTS, ROOM, ROOM, st.booleans())
def test_a_block_holds_what_was_packed_and_nothing_behind_it(lengths, tokens, sequences, typed):
    arrays = packed(lengths)
    if not typed:
        del arrays["token_type_ids"]
    check(packed_layout(sum(lengths) + tokens, len(lengths) + sequences), arrays, Placement())


@given(COUNTS, st.integers(1, 7), ROOM, st.integers(0, 7), st.tuples(*[ROOM] * 4))
def test_a_block_holds_a_step_and_nobody_behind_it(counts, pages, rows, source_pages, more):
    sequences, tokens = len(counts), sum(counts)
    step = StepBatch(
        input_ids=numbers(0, tokens, dtype=np.int64),
        positions=numbers(1, tokens),
        cu_seqlens=np.cumsum([0, *counts]).astype(np.int32),
        context_lengths=numbers(2, sequences),
        block_table=numbers(3, sequences, pages),
        logit_rows=numbers(4, rows, dtype=np.int64),
        sources=SourceTable(numbers(5, sequences), numbers(6, sequences, source_pages))
        if source_pages
        else None,
    )
    sizes = tokens, sequences, pages, rows
    with_room = [size + room for size, room in zip(sizes, more, strict=True)]
    layout = step_layout(*with_room, source_pages and source_pages + more[2])
    assert ("source_table" in layout.places) == (source_pages > 0)
    check(layout, step.arrays, Placement())


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
def test_a_block_crosses_to_the_device(place: Placement) -> None:
    check(packed_layout(49, 16), packed([3, 1, 40]), place)


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
def test_kernels_find_the_sequences_in_the_block(place: Placement) -> None:
    arrays = packed([3, 1, 40])
    offsets = arrays["cu_seqlens"]
    batch = Inputs.upload(packed_layout(44, 3), arrays, place).sequences(offsets)
    assert (batch.tokens, batch.sequences, batch.max_seqlen) == (44, 3, 40)
    rows = np.random.default_rng(0).standard_normal((44, 16), np.float32)
    pooled = place.empty(3, 16)
    kernels.pool(pooled, place.floats(rows), batch, "max", place.stream)
    wanted = np.stack([rows[a:b].max(0) for a, b in itertools.pairwise(offsets)])
    np.testing.assert_array_equal(place.numpy(pooled), wanted)


def test_offsets_in_a_block_with_room_to_spare_are_refused() -> None:
    inputs = Inputs.upload(packed_layout(3, 2), {}, Placement())
    with pytest.raises(kernels.Error, match=r"device_offsets: got int32\[3\], wanted int32\[2\]"):
        inputs.sequences(np.int32([0, 3]))


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 9), ROOM)
def test_arrays_are_aligned_apart_and_within_the_block(tokens, sequences, pages, rows) -> None:
    for layout in (packed_layout(tokens, sequences), step_layout(tokens, sequences, pages, rows)):
        begins = [begin for begin, _, _ in layout.places.values()]
        assert all(begin % 16 == 0 for begin in [*begins, layout.nbytes])
        for (begin, dtype, shape), end in zip(
            layout.places.values(), [*begins[1:], layout.nbytes], strict=True
        ):
            size = np.dtype((dtype, shape)).itemsize
            assert begin + size <= end < begin + size + 16

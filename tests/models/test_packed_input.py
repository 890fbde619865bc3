"""What is packed for a forward comes out of the block's sections as it went in."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fusewire import kernels
from fusewire.models.packed_input import Layout, PackedInput, pack
from fusewire.placement import Placement
from hypothesis import given
from hypothesis import strategies as st

from tests.places import CPU, GPU_FP32

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def check(
    lengths: list[int], spare: tuple[int, int], typed: bool, seed: int, place: Placement
) -> None:
    rng, tokens = np.random.default_rng(seed), sum(lengths)
    ids = rng.integers(0, 2**40, tokens)
    positions = rng.integers(0, 2**31, tokens).astype(np.int32)
    types = rng.integers(0, 4, tokens).astype(np.int32)
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    layout = Layout(tokens + spare[0], len(lengths) + spare[1])
    block = pack(layout, ids, positions, types if typed else None, offsets)
    inputs = PackedInput.upload(layout, block, place)

    def padded(values: np.ndarray, padding: int) -> np.ndarray:
        return np.concatenate([values, np.full(padding, 0, values.dtype)])

    np.testing.assert_array_equal(place.numpy(inputs.ids), padded(ids, spare[0]))
    np.testing.assert_array_equal(place.numpy(inputs.positions), padded(positions, spare[0]))
    wanted = padded(types if typed else np.zeros_like(types), spare[0])
    np.testing.assert_array_equal(place.numpy(inputs.types), wanted)
    # Sequences beyond the batch are empty: they begin and end where the tokens do.
    wanted = np.concatenate([offsets, np.full(spare[1], tokens, np.int32)])
    np.testing.assert_array_equal(place.numpy(inputs.offsets), wanted)


@given(LENGTHS, st.tuples(st.integers(0, 9), st.integers(0, 9)), st.booleans(), st.integers(0, 99))
def test_a_block_holds_what_was_packed(lengths, spare, typed, seed) -> None:
    check(lengths, spare, typed, seed, Placement())


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
def test_a_block_crosses_to_the_device(place: Placement) -> None:
    check([3, 1, 40], (5, 13), True, 0, place)


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
def test_kernels_find_the_sequences_in_the_block(place: Placement) -> None:
    offsets = np.int32([0, 3, 4, 44])
    ids = np.zeros(44, np.int64)
    layout = Layout(44, 3)
    block = pack(layout, ids, ids.astype(np.int32), None, offsets)
    batch = PackedInput.upload(layout, block, place).batch(offsets)
    assert (batch.tokens, batch.sequences, batch.max_seqlen) == (44, 3, 40)
    rows = np.random.default_rng(0).standard_normal((44, 16), np.float32)
    pooled = place.empty(3, 16)
    kernels.pool(pooled, place.floats(rows), batch, "max", place.stream)
    wanted = np.stack([rows[a:b].max(0) for a, b in itertools.pairwise(offsets)])
    np.testing.assert_array_equal(place.numpy(pooled), wanted)


def test_offsets_in_a_block_with_room_to_spare_are_refused() -> None:
    offsets = np.int32([0, 3])
    block = np.zeros(Layout(3, 2).nbytes, np.uint8)
    inputs = PackedInput.upload(Layout(3, 2), block, Placement())
    with pytest.raises(kernels.Error, match=r"device_offsets: got int32\[3\], wanted int32\[2\]"):
        inputs.batch(offsets)


@given(st.integers(1, 5000), st.integers(1, 300))
def test_sections_are_aligned_apart_and_within_the_block(tokens: int, sequences: int) -> None:
    layout = Layout(tokens, sequences)
    begins = [0, layout.positions, layout.types, layout.offsets, layout.nbytes]
    assert all(begin % 16 == 0 for begin in begins)
    sizes = [8 * tokens, 4 * tokens, 4 * tokens, 4 * (sequences + 1)]
    for begin, size, end in zip(begins[:-1], sizes, begins[1:], strict=True):
        assert begin + size <= end < begin + size + 16

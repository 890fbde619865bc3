"""Rows that searches share from step to step are packed as those of each would be."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import numpy as np
import pytest
from fusewire.engine.beam_rows import BeamRows, StepRows
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.generation_step import Step
from fusewire.engine.kv_cache import Source
from fusewire.engine.packing import pack
from fusewire.models.step_batch import StepBatch


def searches(count: int, *, sourced: bool) -> list[GenerationSequence]:
    found = []
    for index in range(count):
        source = Source([5] * (3 + index)) if sourced else None
        sequence = GenerationSequence([1], 40, beams=4, source=source)
        table = array("i", [10 * index, 10 * index + 1])
        sequence.pages = SimpleNamespace(source=SimpleNamespace(table=table))  # type: ignore[assignment]
        found.append(sequence)
    return found


def packed(sequences: list[GenerationSequence]) -> StepBatch:
    beams = sum(len(each.rows) for each in sequences if each.rows is not None)
    return pack(Step(groups=sequences, beams=beams)).batch


def expect_equal(one: StepBatch, other: StepBatch) -> None:
    assert one.arrays.keys() == other.arrays.keys()
    for name, array_of_one in one.arrays.items():
        np.testing.assert_array_equal(array_of_one, other.arrays[name], name)


def go_on(rows: StepRows, counts: list[int], rng: np.random.Generator) -> None:
    offsets = np.cumsum([0, *counts], dtype=np.int32)
    tokens = rng.integers(0, 50, offsets[-1])
    table = rng.integers(0, 9, (offsets[-1], 3)).astype(np.int32)
    rows.go_on(offsets, tokens, lambda: table)


def apart(sequences: list[GenerationSequence]) -> list[BeamRows]:
    found = []
    for sequence in sequences:
        rows = sequence.rows
        assert rows is not None
        found.append(BeamRows(rows.tokens, rows.position, rows.block_table, rows.stored))
    return found


@pytest.mark.parametrize("sourced", [False, True])
def test_shared_rows_are_packed_as_those_of_each(sourced: bool) -> None:
    rng, sequences = np.random.default_rng(0), searches(3, sourced=sourced)
    rows = StepRows(sequences, np.int32([1, 1, 1]), np.int32([7, 0, 20]), 16)
    for step, counts in enumerate(([4, 1, 2], [4, 1, 2], [4, 3, 2])):
        go_on(rows, counts, rng)
        together = packed(sequences)
        each = apart(sequences)
        assert [(len(own), own.position) for own in each] == [
            (count, begin + step + 1) for count, begin in zip(counts, (7, 0, 20), strict=True)
        ]
        for sequence, own in zip(sequences, each, strict=True):
            sequence.rows = own
        assert not rows.are_of(sequences)
        expect_equal(packed(sequences), together)
        for sequence, shared in zip(sequences, rows.of_each, strict=True):
            sequence.rows = shared


def test_rows_that_were_made_anew_are_taken_instead() -> None:
    """As those of a group that waited meanwhile."""
    sequences = searches(2, sourced=True)
    rows = StepRows(sequences, np.int32([1, 1]), np.int32([7, 0]), 16)
    go_on(rows, [2, 2], np.random.default_rng(0))
    assert rows.are_of(sequences)
    assert not rows.are_of(sequences[::-1])
    sequences[1].rows = BeamRows(np.array([3, 4]), 5, np.ones((2, 1), np.int32), 0)
    assert not rows.are_of(sequences)
    batch = packed(sequences)
    assert batch.input_ids[2:].tolist() == [3, 4]
    assert batch.positions.tolist() == [8, 8, 5, 5]


def test_pages_begin_where_positions_say_so() -> None:
    sequences, rng = searches(3, sourced=False), np.random.default_rng(0)
    rows = StepRows(sequences, np.int32([1, 1, 1]), np.int32([7, 0, 20]), 4)
    for _ in range(12):
        go_on(rows, [4, 4, 4], rng)
        for steps in (1, 2):
            begins = (rows.positions + steps) % 4 == 0
            assert rows.begins(steps) == begins.any()
            goes_on = rows.positions + steps + 1 < 40
            assert rows.pages_for_forks(steps) == (
                (4 * (begins & goes_on)).tolist() if begins.any() else []
            )
        np.testing.assert_array_equal(rows.places, (rows.positions + 1) // 4)
        assert rows.places is rows.places
        assert rows.most_in_page == max((rows.positions + 1) % 4)
        assert rows.least_left == (40 - rows.positions).min()
        assert rows.stored == 4 * sum(rows.positions - 1)
        assert sum(own.stored for own in rows.of_each) == rows.stored


@pytest.mark.parametrize(
    ("positions", "may_end"),
    [
        ([38, 20], True),
        ([37, 20], True),  # none ends
        ([38, 38], False),  # none goes on
        ([20, 39], False),  # a page begins with position 40
    ],
)
def test_some_end_where_others_go_on_and_none_of_them_needs_a_page(positions, may_end) -> None:
    rows = StepRows(searches(2, sourced=False), np.int32([1, 1]), np.int32(positions), 4)
    assert rows.may_end == may_end


@pytest.mark.parametrize("sourced", [False, True])
def test_what_goes_on_without_others_is_as_it_would_be_anew(sourced: bool) -> None:
    sequences, rng = searches(4, sourced=sourced), np.random.default_rng(0)
    rows = StepRows(sequences, np.int32([1, 1, 1, 1]), np.int32([7, 0, 20, 3]), 4)
    go_on(rows, [4, 4, 0, 4], rng)
    packed([sequences[at] for at in (0, 1, 3)])
    pack(Step(groups=sequences, beams=12))  # with sources of all
    own = [sequence.rows for sequence in sequences]
    rest = rows.rest([0, 3])
    assert rest.are_of([sequences[0], sequences[3]])
    assert [sequences[at].rows for at in (0, 3)] == [own[0], own[3]]
    assert [(len(each), each.position) for each in rest.of_each] == [(4, 8), (4, 4)]
    go_on(rest, [4, 3], rng)
    left = [sequences[0], sequences[3]]
    together = packed(left)
    for sequence, each in zip(left, apart(left), strict=True):
        sequence.rows = each
    expect_equal(packed(left), together)

"""What is kept of sequences from step to step says what each of them says itself."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from fusewire.engine.decode_rows import DecodeRows
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.sequence_pages import PageNames, SequencePages
from hypothesis import given
from hypothesis import strategies as st

PAGE_SIZE = 4


def running(arrival: int, priority: int, stored: int) -> GenerationSequence:
    sequence = GenerationSequence([7] * (stored + 1), 1000, priority)
    sequence.rank, sequence.stored = (priority, arrival, 0), stored
    table = array("i", range(100 * arrival, 100 * arrival + stored // PAGE_SIZE + 1))
    sequence.pages = SequencePages(PageNames(PAGE_SIZE), table, stored)
    return sequence


def go_on(rows: DecodeRows, sequence: GenerationSequence) -> None:
    """A token is stored; a page is taken where one begins."""
    sequence.stored += 1
    if sequence.stored % PAGE_SIZE == 0:
        sequence.pages.table.append(1000 * sequence.rank[1] + sequence.stored)
        rows.refresh(sequence)


def check(rows: DecodeRows, wanted: list[GenerationSequence]) -> Any:
    decodes = rows.decodes()
    assert [*decodes.rows.sequences] == sorted(wanted, key=lambda each: each.rank)
    assert decodes.positions.tolist() == [each.stored for each in decodes.rows.sequences]
    for sequence, row in zip(decodes.rows.sequences, decodes.block_table, strict=True):
        table = sequence.pages.table
        assert row[: len(table)].tolist() == table.tolist()
    assert set(rows.growing) <= set(wanted)
    return decodes.rows


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("join"), st.integers(0, 2), st.integers(0, 9)),
            st.tuples(st.just("leave"), st.integers(0, 50), st.none()),
            st.tuples(st.just("step"), st.integers(1, 5), st.none()),
        ),
        max_size=40,
    )
)
def test_rows_are_those_that_joined_and_did_not_leave(calls):
    rows, inside = DecodeRows(PAGE_SIZE), []
    kept = check(rows, inside)
    for arrival, (call, number, stored) in enumerate(calls):
        before = len(inside)
        if call == "join":
            inside.append(running(arrival, number, stored))
            rows.join(inside[-1])
            assert inside[-1] in rows
            assert inside[-1] in rows.growing
        elif call == "leave" and inside:
            left = inside.pop(number % len(inside))
            rows.leave(left)
            rows.leave(left)  # nothing more
            assert left not in rows
        elif call == "step":
            for _ in range(number):
                for sequence in inside:
                    go_on(rows, sequence)
                rows.growing.clear()
        found = check(rows, inside)
        # One object for as long as these are the same, so that others keep what they make of them.
        assert (found is kept) == (len(inside) == before and call != "join")
        kept = found


def test_a_step_in_hand_is_not_changed_by_the_next() -> None:
    rows = DecodeRows(PAGE_SIZE)
    first, second = running(0, 0, 3), running(1, 0, 5)
    rows.join(first)
    rows.join(second)
    before = rows.decodes()
    sequences, positions, table = before.rows.sequences, before.positions, before.block_table.copy()
    rows.leave(first)
    go_on(rows, second)
    rows.join(running(2, 0, 9))
    rows.decodes()
    assert before.rows.sequences is sequences
    assert positions.tolist() == [3, 5]
    np.testing.assert_array_equal(before.block_table, table)

"""The planner: pure policy, checked by properties."""

from __future__ import annotations

import pytest
from fusewire.engine.scheduler import Limits, Turn, deal, free_to_choose, halves, plan
from hypothesis import given
from hypothesis import strategies as st

LENGTHS = st.lists(st.integers(1, 600), max_size=60)


@given(LENGTHS, st.integers(1, 1000))
def test_every_sequence_runs_once_within_the_budget(lengths, budget):
    batches = plan(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        tokens = sum(lengths[index] for index in batch)
        assert tokens <= budget or len(batch) == 1


@given(LENGTHS, st.integers(1, 1000))
def test_few_batches_are_made(lengths, budget):
    batches = plan(lengths, budget)
    room = [min(length, budget) for length in lengths]
    fewest = -(-sum(room) // budget)
    assert len(batches) <= 2 * fewest  # no two of them could have been one
    totals = sorted(sum(room[index] for index in batch) for batch in batches)
    assert len(totals) < 2 or totals[0] + totals[1] > budget


@given(LENGTHS, st.integers(1, 1000))
def test_the_longest_come_first_and_ties_keep_their_order(lengths, budget):
    for batch in plan(lengths, budget):
        assert batch == sorted(batch, key=lambda index: (-lengths[index], index))


def test_what_fits_is_one_batch():
    assert plan([5, 9, 7], 21) == [[1, 2, 0]]
    assert plan([], 21) == []
    assert plan([30, 5], 21) == [[0], [1]]


@given(st.lists(st.integers(1, 600), min_size=2, max_size=60))
def test_halves_are_two_of_about_equal_tokens(lengths):
    [whole] = plan(lengths, sum(lengths))
    left, right = halves(whole, lengths)
    assert left
    assert right
    assert sorted(left + right) == sorted(whole)
    difference = abs(sum(lengths[i] for i in left) - sum(lengths[i] for i in right))
    assert difference <= max(lengths)


def test_one_sequence_has_no_halves():
    with pytest.raises(ValueError, match="two or more"):
        halves([3], [1, 1, 1, 5])


def shares(requests: list[list[int]], budget: int) -> list[int]:
    """How many of each request's sequences a micro-batch takes, where one tenant has them all."""
    dealt = deal([Turn(lengths) for lengths in requests], Limits(budget), {})
    return [dealt.count(index) for index in range(len(requests))]


REQUESTS = st.lists(st.lists(st.integers(1, 600), min_size=1, max_size=20), min_size=1, max_size=12)


@given(REQUESTS, st.integers(1, 1000))
def test_a_share_is_within_the_budget_and_the_first_always_has_one(requests, budget):
    taken = shares(requests, budget)
    tokens = sum(sum(lengths[:count]) for lengths, count in zip(requests, taken, strict=True))
    assert tokens <= budget or (taken[0] == 1 and sum(taken) == 1)
    assert taken[0] >= 1


@given(REQUESTS, st.integers(1, 1000))
def test_every_request_is_through_in_the_end(requests, budget):
    left = [list(lengths) for lengths in requests]
    for _ in range(sum(map(len, requests))):
        for lengths, count in zip(left, shares(left, budget), strict=True):
            del lengths[:count]
        left = [lengths for lengths in left if lengths]
        if not left:
            return
    raise AssertionError(f"left: {left}")


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(12, 1000))
def test_no_request_has_more_than_one_beyond_another_that_has_some_left(counts, budget):
    taken = shares([[1] * count for count in counts], budget)
    for count, mine in zip(counts, taken, strict=True):
        assert mine == count or mine >= max(taken) - 1


def test_a_short_one_is_not_kept_waiting_by_many():
    assert shares([[9] * 100, [1]], 20) == [2, 1]
    assert shares([[30], [1]], 20) == [1, 0]  # alone, as nothing has more room
    assert shares([[5, 30], [5], [30], [4]], 20) == [1, 1, 0, 1]


def test_a_batch_may_choose_from_those_due_before_the_time_is_short():
    assert free_to_choose([1, 1, 1], [9, 9, 9], 0.1) == 3
    assert free_to_choose([1, 1, 1], [2, 2.05, 9], 0.1) == 2
    assert free_to_choose([1, 1, 1], [1.05, 9, 9], 0.1) == 1

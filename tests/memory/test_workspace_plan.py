"""plan_workspace: tensors that are live together never overlap, and the peak is close to the lower
bound."""

from __future__ import annotations

import itertools

import pytest
from fusewire.kernels import Error, plan_workspace
from hypothesis import given, settings
from hypothesis import strategies as st

ALIGNMENT = 64
Record = tuple[int, int, int]  # bytes, first use, last use


def rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@st.composite
def records(draw: st.DrawFn, most: int, largest: int = 1 << 20) -> list[Record]:
    result = []
    for _ in range(draw(st.integers(0, most))):
        first = draw(st.integers(0, most))
        last = first + draw(st.integers(0, most // 2))
        result.append((draw(st.integers(0, largest)), first, last))
    return result


def alive_at_once(plan: list[Record]) -> int:
    return max(
        (
            sum(rounded(size) for size, first, last in plan if first <= t <= last)
            for _, t, _ in plan
        ),
        default=0,
    )


def overlap_in_time(a: Record, b: Record) -> bool:
    return a[1] <= b[2] and b[1] <= a[2]


def smallest_peak(plan: list[Record]) -> int:
    """Returns the exact minimum: for some order, placing each tensor as low as possible is
    optimal."""
    best = sum(rounded(size) for size, _, _ in plan)
    for order in itertools.permutations(range(len(plan))):
        offsets: dict[int, int] = {}
        peak = 0
        for i in order:
            size, at = rounded(plan[i][0]), 0
            for start, end in sorted(
                (offsets[j], offsets[j] + rounded(plan[j][0]))
                for j in offsets
                if overlap_in_time(plan[i], plan[j])
            ):
                if start >= at + size:
                    break
                at = max(at, end)
            offsets[i] = at
            peak = max(peak, at + size)
        best = min(best, peak)
    return best


@given(records(most=24))
@settings(max_examples=300)
def test_tensors_alive_together_lie_apart(plan: list[Record]) -> None:
    offsets, peak, _ = plan_workspace(plan)
    assert len(offsets) == len(plan)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    for (a, at_a), (b, at_b) in itertools.combinations(zip(plan, offsets, strict=True), 2):
        if overlap_in_time(a, b) and a[0] and b[0]:
            assert at_a + a[0] <= at_b or at_b + b[0] <= at_a
    assert peak == max((at + rounded(r[0]) for r, at in zip(plan, offsets, strict=True)), default=0)


@given(records(most=24))
@settings(max_examples=200)
def test_the_peak_lies_between_the_bound_and_the_sum(plan: list[Record]) -> None:
    _, peak, bound = plan_workspace(plan)
    assert bound == alive_at_once(plan)
    assert bound <= peak <= sum(rounded(size) for size, _, _ in plan)


@given(records(most=5, largest=2000))
@settings(max_examples=100)
def test_small_sets_stay_near_the_exact_optimum(plan: list[Record]) -> None:
    # Greedy placement is not optimal: with five tensors an adversarial search found a ratio of
    # 1.57, and none larger.
    _, peak, bound = plan_workspace(plan)
    optimum = smallest_peak(plan)
    assert bound <= optimum <= peak <= 1.6 * optimum


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=40))
@settings(max_examples=200)
def test_tensors_of_one_size_reach_the_bound_exactly(spans: list[tuple[int, int]]) -> None:
    _, peak, bound = plan_workspace([(4096, first, first + length) for first, length in spans])
    assert peak == bound


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=30))
def test_a_chain_of_two_at_a_time_needs_the_largest_pair(sizes: list[int]) -> None:
    chain = [(size, i, i + 1) for i, size in enumerate(sizes)]
    _, peak, bound = plan_workspace(chain)
    assert bound <= peak <= bound + max(rounded(size) for size in sizes)


def test_a_gap_below_is_used_before_the_arena_grows() -> None:
    # 0 and 1 are stacked; 0 is released, and 2 fits into its place.
    offsets, peak, bound = plan_workspace([(640, 0, 1), (1280, 0, 3), (320, 2, 3)])
    assert offsets[2] in (0, 1280)
    assert peak == bound == 1920


def test_the_tightest_gap_is_taken() -> None:
    # Stacked by size. At time 1 the first and third are released, which leaves gaps of 2048 at 0
    # and of 512 at 3072.
    stack = [(2048, 0, 0), (1024, 0, 1), (512, 0, 0), (256, 0, 1)]
    offsets, _, _ = plan_workspace([*stack, (128, 1, 1)])
    assert offsets == [0, 2048, 3072, 3584, 3072]


def test_nothing_needs_nothing() -> None:
    assert plan_workspace([]) == ([], 0, 0)
    assert plan_workspace([(0, 0, 5)]) == ([0], 0, 0)


def test_a_tensor_that_dies_before_its_birth_is_named() -> None:
    with pytest.raises(Error, match=r"lifetimes\[1\]: got last use 1 before first use 3"):
        plan_workspace([(64, 0, 0), (64, 3, 1)])

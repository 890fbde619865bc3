"""Whose turn it is to generate."""

from __future__ import annotations

from itertools import count

from fusewire.engine.generation_queue import GenerationQueue
from fusewire.engine.generation_sequence import GenerationSequence
from hypothesis import given
from hypothesis import strategies as st

_arrivals = count()


def sequence(tenant: str = "", cost_s: float = 1.0, **wishes) -> GenerationSequence:
    made = GenerationSequence([1], 9, tenant=tenant, cost_s=cost_s, **wishes)
    made.rank = made.priority, next(_arrivals), 0
    return made


def run(queue: GenerationQueue) -> list[GenerationSequence]:
    """All, as they begin."""
    begun = []
    while queue:
        begun.append(queue.first)
        queue.begin(begun[-1])
        begun[-1].started = True
    return begun


def test_priority_comes_first_then_what_ran_before_then_the_deadline_then_the_rest():
    first = sequence(priority=-1)
    untimed, late, early = sequence(), sequence(deadline=9.0), sequence(deadline=3.0)
    preempted, next_window = sequence(), sequence(deadline=5.0, goes_on=True)
    preempted.started = True
    last = sequence(priority=1, deadline=1.0)
    queue = GenerationQueue()
    for each in (untimed, late, early, last, first, next_window, preempted):
        queue.add(each)
    assert run(queue) == [first, preempted, next_window, early, late, untimed, last]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30), st.integers(2, 30))
def test_two_tenants_that_wait_had_about_the_same_seconds_at_any_time(
    costs: list[float], others: int
):
    queue = GenerationQueue()
    for cost_s in costs:
        queue.add(sequence("blue", cost_s))
    for _ in range(others):
        queue.add(sequence("green", 1.0))
    had = {"blue": 0.0, "green": 0.0}
    while len({each.tenant for each in queue}) == 2:
        first = queue.first
        queue.begin(first)
        first.started = True
        had[first.tenant] += first.cost_s
        assert abs(had["blue"] - had["green"]) <= max(1.0, *costs) + 1e-9


def test_who_comes_while_one_tenant_has_a_hundred_waiting_is_next_but_one():
    queue = GenerationQueue()
    for _ in range(100):
        queue.add(sequence("blue"))
    for _ in range(50):
        queue.begin(queue.first)
    other = sequence("green")
    queue.add(other)
    assert other in run(queue)[:2]


def test_a_tenant_saves_nothing_up_while_it_asks_for_nothing():
    queue = GenerationQueue()
    for _ in range(50):
        queue.add(sequence("blue"))
    for _ in range(20):
        queue.begin(queue.first)
    for _ in range(30):
        queue.add(sequence("green"))
    turns = [each.tenant for each in run(queue)[:20]]
    assert 8 <= turns.count("green") <= 12


def test_what_leaves_unasked_changes_no_turn():
    queue = GenerationQueue()
    a, b, c = sequence(), sequence(), sequence("blue")
    for each in (a, b, c):
        queue.add(each)
    assert queue.first is a
    queue.remove(a)
    assert run(queue) == [b, c]

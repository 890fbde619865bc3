"""When there is room, as predicted: beside a machine of slots and pages that is run to its end."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

import pytest
from fusewire.engine.forecast import STANDING_SHARE, End, Forecast, Forecasts, Need
from hypothesis import given
from hypothesis import strategies as st

SLOTS, PAGES = 4, 20.0
NOW = 100.0

needs = st.builds(
    Need,
    slots=st.integers(1, SLOTS),
    pages=st.floats(1, PAGES),
    prompt_s=st.floats(0, 1),
    run_s=st.floats(0.01, 10),
)
waiting = st.lists(st.tuples(st.integers(-2, 2), needs), max_size=40)


def begun(needs: list[Need]) -> list[float]:
    """When each begins, by going from one end to the next."""
    now, slots, pages = NOW, SLOTS, PAGES
    ends: list[End] = []
    found = []
    for need in needs:
        while need.slots > slots or need.pages > pages + 1e-9:
            end = heappop(ends)
            now, slots, pages = max(now, end.at), slots + end.slots, pages + end.pages
        found.append(now)
        slots, pages, now = slots - need.slots, pages - need.pages, now + need.prompt_s
        heappush(ends, End(now + need.run_s, need.slots, need.pages))
    return found


@given(st.lists(needs, min_size=1, max_size=40))
def test_the_last_begins_when_it_does_on_the_machine(needs: list[Need]):
    needs = [need._replace(pages=float(int(need.pages))) for need in needs]
    forecast = Forecast(NOW, SLOTS, PAGES)
    *before, last = needs
    for need in before:
        forecast.wait(need)
    assert forecast.begin(last.slots, last.pages) == pytest.approx(begun(needs)[-1])


@given(waiting, needs, st.integers(-3, 3))
def test_each_priority_is_behind_its_own_and_higher_ones(
    waiting: list[tuple[int, Need]], need: Need, priority: int
):
    forecasts, alone = Forecasts(Forecast(NOW, SLOTS, PAGES)), Forecast(NOW, SLOTS, PAGES)
    for of, each in waiting:
        forecasts.wait(of, inf, inf, each)
        if of <= priority:
            alone.wait(each)
    begin = forecasts.begin(priority, inf, need)
    assert begin == alone.begin(need.slots, need.pages)


@given(waiting, needs)
def test_more_in_front_is_never_a_shorter_wait_for_a_whole_machine(
    waiting: list[tuple[int, Need]], need: Need
):
    """All slots and pages: behind everything."""
    forecasts = Forecasts(Forecast(NOW, SLOTS, PAGES))
    before = NOW
    whole = Need(SLOTS, 0.0, 0.0, 0.0)
    for priority, each in waiting:
        forecasts.wait(priority, inf, inf, each)
        begin = forecasts.begin(2, inf, whole)
        assert begin >= before - 1e-9
        before = begin


ONE = Need(1, 1.0, 0.1, 5.0, 0.1 + 5.0 / SLOTS)


@given(st.lists(st.floats(1, 100), max_size=20), st.floats(1, 100))
def test_one_begins_when_the_first_was_to_that_it_goes_before(
    deadlines: list[float], deadline: float
):
    """Equal ones begin one after the other, whatever the order in which they come."""
    forecasts, begins = Forecasts(Forecast(NOW, 1, PAGES)), [NOW]
    alone = Need(1, 1.0, 0.0, 5.0, 5.0)
    for place, each in enumerate(sorted(deadlines)):
        forecasts.wait(0, each, each, alone)
        begins.append(NOW + 5.0 * (place + 1))
    before = sum(each <= deadline for each in deadlines)
    assert forecasts.begin(0, deadline, alone) == pytest.approx(begins[before])
    slack = [each - begins[place] for place, each in enumerate(sorted(deadlines))][before:]
    assert forecasts.slack_s(0, deadline) == pytest.approx(min(slack, default=inf))


@given(st.lists(st.floats(1, 100), unique=True, max_size=20))
def test_the_order_in_which_they_come_changes_nothing(deadlines: list[float]):
    alone = Need(1, 1.0, 0.0, 5.0, 5.0)
    found = []
    for order in (deadlines, sorted(deadlines)):
        forecasts = Forecasts(Forecast(NOW, 1, PAGES))
        for each in order:
            forecasts.wait(0, each, each, alone)
        found.append([each.begins for level in forecasts.levels for each in level.waiting])
    assert found[0] == pytest.approx(found[1])


def test_a_lower_priority_begins_later_for_one_of_a_higher():
    forecasts = Forecasts(Forecast(NOW, 1, PAGES))
    forecasts.wait(1, 50.0, NOW + 7.0, ONE)
    assert forecasts.slack_s(1, 1.0) == pytest.approx(7.0)
    forecasts.wait(0, 90.0, inf, ONE)
    assert forecasts.slack_s(1, 1.0) == pytest.approx(7.0 - ONE.cost_s)
    assert forecasts.slack_s(0, 99.0) == forecasts.slack_s(-1, 1.0) == inf


def full(ends_at: float, waiting: int = 0) -> Forecasts:
    """All slots are taken until then; so many wait, of priority 1."""
    running = Forecast(NOW, SLOTS, PAGES)
    for _ in range(SLOTS):
        running.run(End(ends_at, 1, 1.0))
    queue = Forecasts(running)
    for _ in range(waiting):
        queue.wait(1, inf, inf, Need(1, 1.0, 0.0, 1.0))
    return queue


def test_behind_a_queue_that_stands_longer_than_one_has_time_none_waits_long():
    before = Forecasts(Forecast(NOW, SLOTS, PAGES))
    for at in range(8):
        queue = full(NOW + at + 1.0)
        queue.go_on(before, NOW + at, refusing=False)
        before = queue
    assert queue.longest_wait_s(0, 6.0, NOW + 7.0) == pytest.approx(STANDING_SHARE * 6.0)
    assert queue.longest_wait_s(0, 8.0, NOW + 7.0) == inf
    for refusing, longest in (
        (True, STANDING_SHARE * 6.0),
        (False, inf),
    ):  # who would have filled it
        empty = Forecasts(Forecast(NOW + 8.0, SLOTS, PAGES))
        empty.go_on(queue, NOW + 8.0, refusing=refusing)
        assert empty.longest_wait_s(0, 6.0, NOW + 8.0) == pytest.approx(longest)


def test_what_has_no_deadline_or_a_lower_priority_is_no_queue_that_stands():
    def stood(queue: Forecasts) -> Forecasts:
        queue.go_on(Forecasts(Forecast(NOW, SLOTS, PAGES)), NOW, refusing=False)
        return queue

    queue = stood(full(NOW, waiting=3 * SLOTS))
    assert queue.longest_wait_s(1, 6.0, NOW + 7.0) == inf  # before those without
    assert queue.longest_wait_s(0, 6.0, NOW + 7.0) == inf


def test_asking_changes_nothing():
    forecast = Forecast(NOW, SLOTS, PAGES)
    for _ in range(9):
        forecast.wait(Need(1, 1.0, 0.1, 5.0))
    first = forecast.begin(2, 3.0)
    assert [forecast.begin(2, 3.0) for _ in range(5)] == [first] * 5
    assert first > NOW

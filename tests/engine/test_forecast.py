"""When there is room, as predicted: beside a machine of slots and pages that is run to its end."""

from __future__ import annotations

from heapq import heappop, heappush

import pytest
from fusewire.engine.forecast import End, Forecast, Forecasts, Need
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
        forecasts.wait(of, each)
        if of <= priority:
            alone.wait(each)
    forecast = forecasts.of(priority)
    assert forecast.begin(need.slots, need.pages) == alone.begin(need.slots, need.pages)


@given(waiting, needs)
def test_more_in_front_is_never_a_shorter_wait_for_a_whole_machine(
    waiting: list[tuple[int, Need]], need: Need
):
    """All slots and pages: behind everything."""
    forecasts = Forecasts(Forecast(NOW, SLOTS, PAGES))
    before = NOW
    for priority, each in waiting:
        forecasts.wait(priority, each)
        begin = forecasts.of(2).begin(SLOTS, 0.0)
        assert begin >= before - 1e-9
        before = begin


def test_asking_changes_nothing():
    forecast = Forecast(NOW, SLOTS, PAGES)
    for _ in range(9):
        forecast.wait(Need(1, 1.0, 0.1, 5.0))
    first = forecast.begin(2, 3.0)
    assert [forecast.begin(2, 3.0) for _ in range(5)] == [first] * 5
    assert first > NOW

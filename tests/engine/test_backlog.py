"""The account of predicted seconds: who may still come in, and what is left of it."""

from __future__ import annotations

import threading
from math import inf

import pytest
from fusewire.engine.backlog import Backlog
from fusewire.engine.due_slots import DueSlots
from fusewire.errors import Overloaded
from hypothesis import given
from hypothesis import strategies as st

WIDTH_S = 0.01
WORK = st.lists(st.tuples(st.floats(0, 60), st.floats(0.001, 3)), max_size=40)
LAST = 4095 * WIDTH_S  # what is due later is never late, as far as the slots know


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(WORK, st.floats(0, 60), st.integers(0, 40))
def test_slots_know_what_is_before_and_after(work, due, gone):
    slots = DueSlots(WIDTH_S, 0.0)
    for each in work:
        slots.add(*each)
    for each in work[:gone]:
        slots.add(each[0], -each[1])
    left = sorted(work[gone:])
    slot = min(int(due / WIDTH_S), 4095)
    before = sum(seconds for other, seconds in left if min(int(other / WIDTH_S), 4095) <= slot)
    latest, begin = inf, 0.0
    after = inf
    for other, seconds in left:
        begin += seconds
        if other < LAST:
            starts = int(other / WIDTH_S) * WIDTH_S
            same = sum(s for o, s in left if int(o / WIDTH_S) <= int(other / WIDTH_S))
            latest = min(latest, starts - same)
            if int(other / WIDTH_S) > slot:
                after = min(after, starts - same)
    found = slots.around(due)
    assert found[0] == pytest.approx(before, abs=1e-6)
    assert found[1] == pytest.approx(after, abs=1e-6)
    assert slots.slack == pytest.approx(latest, abs=1e-6)
    assert slots.total == pytest.approx(begin, abs=1e-6)


def test_who_does_not_fit_is_refused_and_told_when_to_come_back():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    backlog.reserve("", 0.6, clock.now + 1)
    with pytest.raises(Overloaded, match=r"queue: got 0\.600 s .* wanted at most 0\.500 s") as no:
        backlog.reserve("", 0.5, clock.now + 1)
    assert 0.6 * 0.8 <= no.value.retry_after_s <= 0.6 * 1.2
    backlog.reserve("", 0.5, clock.now + 1.2)
    with pytest.raises(Overloaded):  # it would make another late
        backlog.reserve("", 0.2, clock.now + 0.5)
    assert backlog.seconds == pytest.approx(1.1)


def test_what_is_corrected_computed_or_has_ended_makes_room():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    first = backlog.reserve("", 0.9, clock.now + 1)
    backlog.correct(first, 0.3)
    second = backlog.reserve("", 0.6, clock.now + 1)
    backlog.correct(first, 0.0)
    backlog.begin(0.3)  # it is computed
    assert backlog.seconds == pytest.approx(0.9)
    clock.now += 0.1
    assert backlog.seconds == pytest.approx(0.8)
    backlog.idle()
    backlog.release(first)
    backlog.release(second)
    backlog.release(second)
    backlog.correct(second, 5.0)
    assert backlog.seconds == 0.0
    backlog.reserve("", 0.99, clock.now + 1)


def test_slots_begin_anew_as_time_passes():
    clock = Clock()
    backlog = Backlog(1.0, clock)
    for _ in range(50):
        kept = backlog.reserve("", 0.5, clock.now + 0.9)
        with pytest.raises(Overloaded):
            backlog.reserve("", 0.5, clock.now + 0.9)
        clock.now += 0.37
        backlog.release(kept)
    assert backlog.seconds == 0.0
    assert backlog.slack_s == inf


def test_the_last_share_is_for_those_who_have_less():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    backlog.reserve("quiet", 0.001, clock.now + 1)
    for _ in range(4):
        backlog.reserve("loud", 0.12, clock.now + 1)
    with pytest.raises(Overloaded):  # it has half of the second
        backlog.reserve("loud", 0.12, clock.now + 1)
    for _ in range(4):
        backlog.reserve("quiet", 0.1, clock.now + 1)


def test_who_is_alone_has_all_of_it():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    left = backlog.reserve("gone", 0.1, clock.now + 1)
    backlog.release(left)
    clock.now += 11
    for _ in range(9):
        backlog.reserve("alone", 0.1, clock.now + 1)


def test_a_margin_is_at_most_a_quarter():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    backlog.reserve("", 0.01, clock.now + 1)
    with pytest.raises(Overloaded):
        backlog.reserve("", 0.8, clock.now + 1, margin_s=9)
    backlog.reserve("", 0.7, clock.now + 1, margin_s=9)


def test_what_is_alone_is_taken_whatever_it_costs_and_is_due_whenever():
    """A prediction may be wrong, and only what is computed corrects it."""
    clock = Clock()
    backlog = Backlog(10.0, clock)
    alone = backlog.reserve("", 20, clock.now + 1)
    assert alone.due == inf
    assert backlog.reserve("", 0.3, clock.now + 1).due == clock.now + 1  # it comes before
    with pytest.raises(Overloaded):
        backlog.reserve("", 20, clock.now + 1)


def test_wrong_predictions_of_batches_do_not_add_up():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    for _ in range(100):
        backlog.begin(0.5)  # which takes a tenth of that
        clock.now += 0.05
    assert backlog.seconds <= 1.0


def test_names_of_tenants_are_forgotten():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    for number in range(5000):
        backlog.release(backlog.reserve(str(number), 1e-6, clock.now + 1))
    assert len(backlog._asked) <= 1025
    assert not backlog._tenants
    assert not backlog._counts


def test_from_many_threads_nothing_is_lost():
    backlog = Backlog(10.0)
    now = backlog._clock()

    def client(number: int) -> None:
        for _ in range(300):
            kept = backlog.reserve(str(number % 2), 1e-4, now + 1000)
            backlog.correct(kept, 2e-4)
            backlog.release(kept)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backlog.seconds == 0.0
    assert not backlog._live

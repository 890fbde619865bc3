"""The account of predicted seconds: who may still come in, and what is left of it."""

from __future__ import annotations

import threading
from math import floor, inf, log2

import pytest
from fusewire.engine.backlog import Backlog
from fusewire.engine.due_slots import DueSlots, OwnMemory
from fusewire.errors import Overloaded
from hypothesis import given
from hypothesis import strategies as st

WIDTH_S = 0.01
NEAR_S = 4096 * WIDTH_S  # of slots of that width
DUES = st.one_of(st.floats(0, 60), st.floats(0, 1e6))
WORK = st.lists(st.tuples(DUES, st.floats(0.001, 3)), max_size=40)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def counted_as(due: float) -> float:
    """When the slot of a time begins: they are of one width, then 1/128 of each doubling."""
    if due < NEAR_S:
        return floor(due / WIDTH_S) * WIDTH_S
    octave = NEAR_S * 2.0 ** floor(log2(due / NEAR_S))
    return octave * (1 + floor((due / octave - 1) * 128) / 128)


@given(WORK, DUES, st.integers(0, 40))
def test_slots_know_what_is_before_and_after(work, due, gone):
    slots = DueSlots(WIDTH_S, 0.0, OwnMemory().take())
    for each in work:
        slots.add(*each)
    for each in work[:gone]:
        slots.add(each[0], -each[1])
    left = sorted((slots.slot(other), counted_as(other), seconds) for other, seconds in work[gone:])
    own = slots.slot(due)
    before = sum(seconds for slot, _, seconds in left if slot <= own)
    latest = after = inf
    for slot, begins, _ in left:
        begin = begins - sum(seconds for other, _, seconds in left if other <= slot)
        latest = min(latest, begin)
        if slot > own:
            after = min(after, begin)
    found = slots.around(due)
    assert found[0] == pytest.approx(before, abs=1e-6)
    assert found[1] == pytest.approx(after, abs=1e-6)
    assert slots.slack == pytest.approx(latest, abs=1e-6)
    assert slots.total == pytest.approx(sum(seconds for *_, seconds in left), abs=1e-6)
    if after < inf:
        slot = slots.tightest(due)
        [begins] = {begins for other, begins, _ in left if other == slot}
        tight = begins - sum(seconds for other, _, seconds in left if other <= slot)
        assert slot > own
        assert tight == pytest.approx(after, abs=1e-6)


@given(DUES, DUES)
def test_who_is_due_later_is_in_no_earlier_slot(one, other):
    slots = DueSlots(WIDTH_S, 0.0, OwnMemory().take())
    first, second = sorted((one, other))
    assert slots.slot(first) <= slots.slot(second)


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


def test_beyond_its_share_a_tenant_fills_half_of_the_others():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    for quiet in "abc":
        backlog.reserve(quiet, 0.01, clock.now + 1)
    for _ in range(17):  # up to 0.37 with what is there, of 0.75 beyond its own
        backlog.reserve("loud", 0.02, clock.now + 1)
    with pytest.raises(Overloaded, match="of one tenant"):
        backlog.reserve("loud", 0.02, clock.now + 1)
    for quiet in "abc":  # each a quarter at once
        backlog.reserve(quiet, 0.2, clock.now + 1)


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
    assert len(backlog._tenants._asked) <= 1025
    assert not backlog._tenants._seconds
    assert not backlog._tenants._requests


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
    assert not backlog._requests


def test_what_is_due_late_keeps_its_time():
    """However much later than others it is due."""
    clock = Clock()
    backlog = Backlog(1.0, clock)
    backlog.reserve("", 900.0, clock.now + 1000)
    for _ in range(90):
        backlog.reserve("", 1.0, clock.now + 500)
    for _ in range(2):  # of slots that far away each is some seconds wide
        backlog.reserve("", 1.0, clock.now + 500)
    with pytest.raises(Overloaded, match="comes before other requests"):
        backlog.reserve("", 9.0, clock.now + 500)
    clock.now += 800  # of which nothing was computed: slots begin anew
    with pytest.raises(Overloaded):
        backlog.reserve("", 1.0, clock.now + 200)


def test_what_has_no_time_costs_nothing_to_reserve_and_holds_up_nobody():
    clock = Clock()
    backlog = Backlog(1.0, clock)
    untimed = [backlog.reserve(str(n), 5.0, inf, priority=n) for n in range(1000)]
    assert not backlog._levels._levels
    assert not backlog._tenants._asked
    assert backlog.seconds == pytest.approx(5000)
    assert backlog.slack_s == inf
    timed = backlog.reserve("other", 0.9, clock.now + 1)
    assert timed.due == clock.now + 1
    for each in untimed:
        backlog.correct(each, 1.0)
        backlog.release(each)
    assert backlog.seconds == pytest.approx(0.9)


def test_a_thousand_tenants_are_looked_at_by_none():
    """Who asks costs as much among many tenants as among few."""

    class Counting(dict):
        looked = 0

        def __iter__(self):
            Counting.looked += len(self)
            return super().__iter__()

        keys = items = values = __iter__

    clock = Clock()
    backlog = Backlog(10.0, clock)
    backlog._tenants._requests = Counting()
    kept = [backlog.reserve(str(number), 1e-6, clock.now + 5) for number in range(3000)]
    assert backlog._tenants.ask("0", clock.now) == 3000  # those that asked, and those with work
    assert Counting.looked == 0
    for each in kept:
        backlog.release(each)
    clock.now += 11
    assert backlog._tenants.ask("0", clock.now) == 1


def test_a_lone_request_of_its_tenant_is_no_matter_of_shares():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    for name in "abc":
        backlog.reserve(name, 0.05, clock.now + 1)
    backlog.reserve("d", 0.8, clock.now + 1)  # more than a quarter
    with pytest.raises(Overloaded):
        backlog.reserve("d", 0.01, clock.now + 1)


def test_a_higher_priority_is_judged_against_its_own():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    low = [backlog.reserve("", 0.1, clock.now + 1, priority=5) for _ in range(10)]
    with pytest.raises(Overloaded):
        backlog.reserve("", 0.1, clock.now + 1, priority=5)
    high = backlog.reserve("", 0.25, clock.now + 1, priority=1)
    assert high.displaces == low[:6:-1]  # those that came last, and no more than are in the way
    assert all(each.left for each in high.displaces)
    assert backlog.seconds == pytest.approx(0.95)
    with pytest.raises(Overloaded):
        backlog.reserve("", 0.8, clock.now + 1, priority=1)
    assert not any(each.left for each in low[:7])


def test_of_other_tenants_only_a_fair_share_displaces():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    others = [backlog.reserve("b", 0.1, clock.now + 1, priority=5) for _ in range(9)]
    for _ in range(5):
        backlog.reserve("a", 0.1, clock.now + 1, priority=0)
    with pytest.raises(Overloaded):
        backlog.reserve("a", 0.1, clock.now + 1, priority=0)
    assert sum(each.left for each in others) == 4


def test_more_priorities_than_are_told_apart():
    clock = Clock()
    backlog = Backlog(10.0, clock)
    kept = [backlog.reserve("", 0.001, clock.now + 1, priority=p) for p in range(-50, 50)]
    assert len(backlog._levels._levels) == 8
    for each in kept:
        backlog.release(each)
    assert backlog.seconds == 0.0
    backlog.reserve("", 0.001, clock.now + 1, priority=77)
    assert 77 in [level.priority for level in backlog._levels._levels]

"""Who is taken where sequences run and wait, by a clock that is moved here."""

from __future__ import annotations

from math import inf

import pytest
from fusewire.engine.admission import Admission
from fusewire.errors import Overloaded, QueueFull


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def saturated(clock: Clock, max_queue_s: float = inf) -> Admission:
    """Two run and two wait; one leaves every half second, and another comes."""
    admission = Admission(2, 10, max_queue_s, clock)
    for _ in range(4):
        admission.take(1)
    for _ in range(20):
        clock.now += 0.5
        admission.leave()
        admission.take(1)
    return admission


def test_who_would_wait_longer_than_requests_may_is_refused(clock: Clock) -> None:
    admission = saturated(clock, max_queue_s=2.1)
    admission.take(1)  # it begins when three have left: in 1.5 s
    admission.take(1)  # in 2 s
    words = r"queue: got 2\.500 s .*at most 2\.100 s; .*try again in"
    with pytest.raises(Overloaded, match=words) as caught:
        admission.take(1)
    assert 2.0 <= caught.value.retry_after_s <= 3.0
    clock.now += 0.5
    admission.leave()
    admission.take(1)


def test_who_could_not_begin_before_its_deadline_is_refused(clock: Clock) -> None:
    admission = saturated(clock)
    with pytest.raises(Overloaded):
        admission.take(1, clock.now + 1.4)
    admission.take(1, clock.now + 1.6)
    admission.take(1)  # who has all the time there is waits


def test_nobody_is_refused_where_there_is_room_to_run(clock: Clock) -> None:
    admission = saturated(clock)
    for _ in range(3):
        admission.leave()
    admission.take(1, clock.now)
    with pytest.raises(Overloaded):
        admission.take(1, clock.now + 0.1)


def test_nothing_is_predicted_before_anything_was_seen(clock: Clock) -> None:
    admission = Admission(1, 3, 0.001, clock)
    for _ in range(4):
        admission.take(1, clock.now)
    with pytest.raises(QueueFull) as caught:
        admission.take(1)
    assert type(caught.value) is QueueFull


def test_idle_time_is_not_taken_for_slow_work(clock: Clock) -> None:
    admission = saturated(clock)
    for _ in range(4):
        admission.leave()
    clock.now += 3600
    for _ in range(4):
        admission.take(1)
    clock.now += 0.5
    admission.leave()
    admission.take(1, clock.now + 1.6)


def test_a_server_that_slows_down_is_noticed(clock: Clock) -> None:
    admission = saturated(clock)
    for _ in range(60):
        clock.now += 2.0
        admission.leave()
        admission.take(1)
    with pytest.raises(Overloaded):
        admission.take(1, clock.now + 5.0)


def test_what_is_refused_after_all_says_nothing_of_how_fast_others_leave(clock: Clock) -> None:
    admission = saturated(clock)
    for _ in range(50):
        admission.take(1)
        admission.leave(computed=False)
    with pytest.raises(Overloaded):
        admission.take(1, clock.now + 1.4)

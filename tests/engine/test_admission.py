"""Generation takes no more than runs and waits, and nothing that would wait too long."""

from __future__ import annotations

import pytest
from fusewire.engine.admission import Admission
from fusewire.errors import Overloaded, QueueFull


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def busy(clock: Clock, waiting: int, **limits: float) -> Admission:
    """Two run, `waiting` wait, and every half a second one has ended and another come."""
    admission = Admission(2, 50, clock=clock, **limits)
    admission.take(2 + waiting)
    for _ in range(5):
        admission.leave()
        admission.take(1)
        clock.now += 0.5
    return admission


def test_who_would_wait_too_long_is_refused_and_told_when_to_come_back():
    admission = busy(Clock(), 7, max_queue_s=4.0)
    admission.take(1)
    with pytest.raises(
        Overloaded, match=r"a predicted wait of 4\.50 s, wanted at most 4\.00"
    ) as no:
        admission.take(1)
    assert no.value.retry_after_s == pytest.approx(0.5)


def test_who_would_begin_after_its_deadline_is_refused():
    clock = Clock()
    admission = busy(clock, 7)
    with pytest.raises(Overloaded):
        admission.take(1, clock.now + 3.9)
    admission.take(1, clock.now + 4.1)
    admission.take(1, clock.now - 1)  # answered as late


def test_without_a_wait_nothing_is_predicted():
    clock = Clock()
    admission = Admission(2, 50, max_queue_s=0.1, clock=clock)
    for _ in range(5):
        admission.take(2)
        clock.now += 60
        admission.leave(2)
    admission.take(10)


def test_what_was_refused_after_all_says_nothing_of_the_time():
    clock = Clock()
    admission = busy(clock, 7, max_queue_s=4.0)
    for _ in range(20):
        admission.take(1)
        admission.leave(ran=False)
    admission.take(1)
    with pytest.raises(Overloaded):
        admission.take(1)


def test_a_full_queue_takes_nobody():
    admission = Admission(1, 2)
    admission.take(3)
    with pytest.raises(QueueFull, match="got 2 sequences waiting, wanted fewer than 2"):
        admission.take(1)

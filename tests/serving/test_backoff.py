"""Attempts that fail come ever more seldom, up to once a minute."""

from __future__ import annotations

import pytest
from fusewire.serving import backoff
from fusewire.serving.backoff import Backoff


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(backoff.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def waits(attempts: Backoff, clock: Clock, count: int) -> list[float]:
    """The waits between attempts that take no time."""
    found = []
    for _ in range(count):
        found.append(attempts.wait_s())
        clock.now += found[-1]
        attempts.begin()
    return found


def test_attempts_begin_1_to_60_s_apart(clock: Clock) -> None:
    assert waits(Backoff(), clock, 9) == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_the_time_of_an_attempt_counts(clock: Clock) -> None:
    attempts = Backoff()
    attempts.begin()
    clock.now += 0.75
    assert attempts.wait_s() == 0.25
    clock.now += 5
    assert attempts.wait_s() == 0


@pytest.mark.parametrize(("health_s", "next_s"), [(59, 60), (60, 1)])
def test_a_minute_of_health_forgets_the_failures(
    clock: Clock, health_s: float, next_s: float
) -> None:
    attempts = Backoff()
    waits(attempts, clock, 8)
    attempts.succeeded()
    clock.now += health_s
    attempts.ended()
    clock.now += 100  # waiting is no health
    attempts.begin()
    assert attempts.wait_s() == next_s


def test_a_minute_of_failing_is_no_health(clock: Clock) -> None:
    attempts = Backoff()
    waits(attempts, clock, 8)
    clock.now += 600
    attempts.ended()
    attempts.begin()
    assert attempts.wait_s() == 60

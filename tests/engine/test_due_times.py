"""When requests are due follows from how those before them ended."""

from __future__ import annotations

import pytest
from fusewire.engine.due_times import DueTimes
from hypothesis import given
from hypothesis import strategies as st


def end(due_times: DueTimes, at: float, stretch: float) -> None:
    """One with a second's time that was taken then, and waits so many times what was predicted."""
    due_times.ended(at, at + 1.0, at + stretch * (due_times.due(at, at + 1.0) - at))


@given(st.floats(1e-3, 1e4), st.lists(st.floats(0, 10), max_size=50))
def test_what_is_taken_is_due_between_now_and_its_deadline(window_s, stretches):
    due_times = DueTimes()
    for at, stretch in enumerate(stretches):
        end(due_times, float(at), stretch)
    assert 0 < due_times.due(0.0, window_s) < window_s


def test_a_part_of_the_time_is_left_for_what_is_not_seen():
    assert DueTimes().due(10.0, 10.4) == pytest.approx(10.3)
    assert DueTimes().due(10.0, 70.0) == pytest.approx(69.8)


@pytest.mark.parametrize("truth", [1.2, 2.0, 4.0])
def test_waits_are_stretched_as_far_as_they_are_longer_and_no_further(truth):
    due_times = DueTimes()
    for step in range(400):
        end(due_times, step * 0.1, truth)
    assert 0.6 * 0.8 / truth < due_times.due(40.0, 41.0) - 40.0 < 1.1 * 0.8 / truth


def test_those_taken_before_a_raise_are_not_held_against_it():
    one, many = DueTimes(), DueTimes()
    for _ in range(3):
        one.ended(0.0, 1.0, 1.0)
    for _ in range(300):
        many.ended(0.0, 1.0, 1.0)
    assert many.due(1.0, 2.0) == one.due(1.0, 2.0) < 1.8


def test_a_single_late_answer_changes_nothing():
    due_times = DueTimes()
    for step in range(100):
        end(due_times, step * 0.1, 3.0 if step == 50 else 0.5)
    assert due_times.due(0.0, 1.0) == pytest.approx(0.8)


def test_what_was_learned_under_load_is_forgotten_also_where_nothing_ends():
    due_times = DueTimes()
    for step in range(50):
        end(due_times, step * 0.1, 2.0)
    assert due_times.due(5.0, 6.0) - 5.0 < 0.5
    assert due_times.due(300.0, 301.0) - 300.0 == pytest.approx(0.8, abs=0.01)


def compute(due_times: DueTimes, ratio: float, batches: int = 1, at: float = 0.0) -> None:
    """Micro-batches, planned to take 0.1 s, that take so many times that, one after the other."""
    for _ in range(batches):
        at += 0.1 * ratio
        due_times.computed(0.1, 0.1 * ratio, at)


@pytest.mark.parametrize("truth", [1.1, 1.3, 3.0])
def test_waits_are_stretched_as_far_as_micro_batches_are_slower_before_one_is_late(truth):
    due_times = DueTimes()
    compute(due_times, truth, batches=12)
    assert truth / 1.06 < due_times.factor(1.2 * truth) < truth * 1.001


def test_as_long_as_micro_batches_take_about_what_was_planned_nothing_is_stretched():
    due_times = DueTimes()
    for ratio in (1.0, 0.5, 1.04, 1.1, 0.9):
        compute(due_times, ratio)
    assert due_times.factor(0.0) == 1.0


def test_a_machine_that_stood_still_once_stretches_waits_a_little():
    due_times = DueTimes()
    compute(due_times, 100.0)
    assert due_times.factor(10.0) < 1.2


def test_the_slowness_of_an_hour_ago_is_forgotten_before_the_next_micro_batch():
    due_times = DueTimes()
    compute(due_times, 3.0, batches=12)
    compute(due_times, 1.0, at=3600.0)
    assert due_times.factor(3600.1) == pytest.approx(1.0)

"""The cost of a micro-batch: measured, monotone, corrected by what it took."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fusewire.engine.costs import CostTable, measure
from hypothesis import given
from hypothesis import strategies as st

POINTS = st.lists(
    st.tuples(st.integers(1, 5000), st.floats(1e-5, 1.0)), min_size=1, unique_by=lambda p: p[0]
).map(sorted)


class Machine:
    """Computes in the time of a formula, by a clock of its own."""

    def __init__(self, fixed_s: float, token_s: float, square_s: float, first_s: float = 0) -> None:
        self.fixed_s, self.token_s, self.square_s = fixed_s, token_s, square_s
        self.first_s = first_s
        self.now = 0.0
        self.ran: list[list[int]] = []

    def seconds(self, tokens: int, squares: float) -> float:
        return self.fixed_s + self.token_s * tokens + self.square_s * squares

    def run(self, lengths) -> None:
        first = list(lengths) not in self.ran
        self.ran.append(list(lengths))
        squares = sum(length**2 for length in lengths)
        self.now += self.seconds(sum(lengths), squares) + self.first_s * first

    def measured(self, max_tokens: int = 16384, max_length: int = 512, **given: int) -> CostTable:
        return measure(self.run, max_tokens, max_length, clock=lambda: self.now, **given)


@pytest.mark.parametrize("first_s", [0.0, 0.005])
def test_what_is_measured_is_what_batches_take(first_s):
    machine = Machine(2e-4, 3e-7, 1e-10, first_s)
    costs = machine.measured()
    for lengths in ([16], [64] * 3, [128], [512], [300] * 40, [512] * 32):
        tokens, squares = sum(lengths), sum(length**2 for length in lengths)
        wanted = machine.seconds(tokens, squares)
        assert costs.seconds(tokens, squares) == pytest.approx(wanted, rel=0.02)
    assert not costs.linear


def test_a_slow_machine_is_measured_within_the_budget():
    machine = Machine(0.0, 1e-4, 1e-9)
    costs = machine.measured()
    assert machine.now < 0.8
    assert costs.seconds(5000, 0) == pytest.approx(0.5, rel=0.01)
    assert costs.linear


def test_a_machine_that_takes_seconds_is_still_measured():
    machine = Machine(1.0, 1e-2, 0.0)
    costs = machine.measured()
    assert machine.now < 4
    assert costs.seconds(16, 0) == pytest.approx(1.16)


@given(POINTS, st.integers(1, 10_000), st.integers(1, 10_000))
def test_more_tokens_never_cost_less(points, one, other):
    costs = CostTable(points)
    few, many = sorted((one, other))
    assert costs.seconds(few, 0) <= costs.seconds(many, 0) * (1 + 1e-12)
    assert costs.seconds(many, 0) <= costs.seconds(many, 100.0)


@given(POINTS, st.lists(st.integers(1, 10_000), min_size=1))
def test_many_batches_cost_what_each_does(points, sizes):
    costs = CostTable(points, 1e-9)
    squares = [float(size * 7) for size in sizes]
    found = costs.seconds_of(np.array(sizes, float), np.array(squares))
    wanted = [costs.seconds(*each) for each in zip(sizes, squares, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_the_prediction_follows_the_machine_and_no_exception():
    costs = CostTable([(1, 0.001), (1000, 0.1)])
    for _ in range(100):
        costs.observe(1000, 0, 0.15)
    assert costs.seconds(1000, 0) == pytest.approx(0.15, rel=0.01)
    costs.observe(1000, 0, 60.0)  # the machine stood still
    assert costs.seconds(1000, 0) < 0.2
    for _ in range(1000):
        costs.observe(1000, 0, 60.0)
    assert costs.seconds(1000, 0) <= 0.8 * (1 + 1e-9)
    for _ in range(1000):
        costs.observe(1000, 0, 1e-9)
    assert costs.seconds(1000, 0) >= 0.1 / 8 * (1 - 1e-9)


def test_without_a_measurement_the_first_batch_is_one():
    costs = CostTable()
    assert costs.seconds(1000, 1e6) == costs.share(1000, 1e6) == costs.efficient_s == 0
    costs.observe(100, 1e4, 0.02)
    assert costs.seconds(1000, 1e6) == pytest.approx(0.2)
    assert costs.share(50, 0) == pytest.approx(0.01)
    for _ in range(100):  # the first one was slow: it warmed up
        costs.observe(100, 1e4, 0.001)
    assert costs.seconds(1000, 1e6) == pytest.approx(0.01, rel=0.05)


def test_what_one_adds_is_the_rate_of_a_batch_that_is_large_enough():
    machine = Machine(1e-3, 1e-6, 0.0)
    costs = machine.measured()
    per_token = costs.share(1, 0)
    assert 1e-6 + 1e-3 / 16384 < per_token < 1.2 * (1e-6 + 1e-3 / 16384)
    tokens = costs.efficient_tokens
    assert costs.efficient_s == pytest.approx(per_token * tokens)


def test_a_pause_of_the_machine_is_no_attention():
    machine = Machine(0.0, 1e-5, 0.0)
    run = machine.run
    machine.run = lambda lengths: (run(lengths), machine.pause(lengths))
    machine.pause = lambda lengths: setattr(machine, "now", machine.now + (lengths == [512]))
    costs = machine.measured()
    assert costs.seconds(512, 512**2) <= 2 * machine.seconds(512, 0) * (1 + 1e-9)


@pytest.mark.parametrize("wrong", [2.5, 0.2])
def test_an_error_of_small_batches_is_none_of_large_ones(wrong):
    machine = Machine(2e-4, 3e-7, 0.0)
    costs = machine.measured()
    for _ in range(1000):
        costs.observe(16, 0.0, wrong * machine.seconds(16, 0))
    assert costs.seconds(16, 0) == pytest.approx(wrong * machine.seconds(16, 0), rel=0.01)
    for tokens in (2048, 16384):
        assert costs.seconds(tokens, 0) == pytest.approx(machine.seconds(tokens, 0), rel=0.01)


def test_each_size_is_corrected_by_its_own_batches():
    machine = Machine(0.0, 1e-4, 1e-8)
    costs = machine.measured(1024)
    took = {16: 3.0, 64: 2.0, 256: 1.5}  # times what was measured
    for _ in range(300):
        for tokens, ratio in took.items():
            costs.observe(tokens, 100.0, ratio * machine.seconds(tokens, 100.0))
    for tokens, ratio in took.items():
        wanted = ratio * machine.seconds(tokens, 100.0)
        assert costs.seconds(tokens, 100.0) == pytest.approx(wanted, rel=0.03)


def test_steps_of_few_sequences_say_nothing_of_those_of_many():
    machine = Machine(0.005, 1e-4, 0.0)
    costs = machine.measured(512, fewest=1)
    assert [tokens for tokens, _ in costs.points][:5] == [1, 2, 4, 8, 16]
    for _ in range(300):
        costs.observe(16, 0.0, 2 * machine.seconds(16, 0.0))
    for _ in range(300):
        costs.observe(1, 0.0, machine.seconds(1, 0.0))
    assert costs.seconds(16, 0.0) == pytest.approx(2 * machine.seconds(16, 0.0), rel=0.01)


@given(POINTS, st.lists(st.tuples(st.integers(1, 10_000), st.floats(1e-6, 10.0)), max_size=20))
def test_corrected_by_whatever_more_tokens_never_cost_less(points, batches):
    costs = CostTable(points, 1e-9)
    for tokens, seconds in batches:
        costs.observe(tokens, float(tokens), seconds)
    found = [costs.seconds(tokens, 0) for tokens in range(1, 10_000, 97)]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("image_s", [1e-4, 0.02, 3.0])
def test_images_are_measured_as_they_come(image_s):
    machine = Machine(2e-4, image_s / 577, 0.0)
    costs = machine.measured(max_length=577, length=577)
    assert all(len(set(batch)) == 1 and batch[0] == 577 for batch in machine.ran)
    assert machine.now < 0.8 + 4 * image_s
    for images in (1, 3, 8):
        wanted = machine.seconds(images * 577, 0)
        assert costs.seconds(images * 577, images * 577.0**2) == pytest.approx(wanted, rel=0.05)


def test_an_image_of_more_tokens_than_a_batch_is_measured_alone():
    machine = Machine(2e-4, 1e-5, 0.0)
    assert [tokens for tokens, _ in machine.measured(500, 577, length=577).points] == [577]

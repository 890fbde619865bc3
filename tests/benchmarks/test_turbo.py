"""The policies of TurboTransformers' experiment, and the queue that they serve, with a model whose
time is made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks import random_bert, turbo, turbo_report, turbo_service
from benchmarks import turbo_policies as policies
from benchmarks.overload_arrivals import Arrival
from benchmarks.turbo_service import (
    Closed,
    Open,
    Served,
    measured_costs,
    serve_closed,
    serve_open,
    service,
)
from benchmarks.worker import Worker


def padded(longest: int) -> NDArray[np.float64]:
    return 1.5 + 0.01 * longest * np.arange(11.0)


def cost(batches: Sequence[Sequence[int]], lengths: Sequence[int]) -> float:
    return sum(padded(max(lengths[i] for i in batch))[len(batch)] for batch in batches)


def partitions(items: list[int]) -> list[list[list[int]]]:
    """Every way to split them into batches."""
    if not items:
        return [[]]
    first, *others = items
    found = []
    for rest in partitions(others):
        found.append([[first], *rest])
        for place in range(len(rest)):
            found.append([*rest[:place], [first, *rest[place]], *rest[place + 1 :]])
    return found


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(1, 6))
def test_the_dynamic_program_finds_the_cheapest_of_all_batches(
    lengths: list[int], most: int
) -> None:
    found = policies.dynamic_program(padded, most)(range(len(lengths)), lengths)
    assert sorted(i for batch in found for i in batch) == list(range(len(lengths)))
    assert max(map(len, found)) <= most
    every = [
        split for split in partitions(list(range(len(lengths)))) if max(map(len, split)) <= most
    ]
    assert cost(found, lengths) == pytest.approx(min(cost(split, lengths) for split in every))


def test_batches_in_order_are_of_those_that_came_first() -> None:
    assert policies.in_order(2)([7, 8, 3], []) == [[7, 8]]
    assert policies.in_order(20)([7, 8, 3], []) == [[7, 8, 3]]
    assert policies.in_order(1)([7, 8, 3], []) == [[7]]


def test_costs_between_those_measured_are_on_the_lines_between_them() -> None:
    costs = policies.measured([1, 3, 5], [1, 3], np.array([[1.0, 3.0], [3.0, 9.0], [3.0, 9.0]]))
    assert costs.shape == (6, 4)
    assert (costs[1, 1], costs[2, 1], costs[3, 2], costs[2, 2], costs[5, 3]) == (1, 2, 6, 4, 9)


class Clock:
    """Time passes in sleep and in the models below alone."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(turbo_service, "time", found)
    return found


def test_measured_costs_are_those_of_padded_batches(clock: Clock) -> None:
    def run(sequences: list[np.ndarray]) -> None:
        clock.sleep(1e-4 * len(sequences) * max(map(len, sequences)))

    costs = measured_costs(run, [np.zeros(64, np.int64)] * 4)
    assert costs[64, 4] == pytest.approx(0.0256)
    assert costs[40, 3] == pytest.approx(0.0120)
    assert costs[64, 1] == pytest.approx(0.0064)


class Model:
    """Takes a time of its own for each batch; notes them."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self.batches: list[list[int]] = []

    def __call__(self, sequences: list[np.ndarray]) -> None:
        self.batches.append([len(each) for each in sequences])
        self.clock.sleep(self.seconds)


SEQUENCES = [np.zeros(length, np.int64) for length in range(1, 11)]


def test_a_closed_loop_answers_all_and_keeps_so_many_under_way(clock: Clock) -> None:
    model = Model(clock, 0.5)
    found = serve_closed(model, policies.in_order(3), Closed("in order", SEQUENCES, 4))
    assert model.batches == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]]
    assert (len(found.waited), found.unanswered, found.batches) == (10, 0, 4)
    assert found.taken_s == 2.0
    # The fourth waited for the first batch, those after it came when that was answered.
    assert found.waited == [0.5, 0.5, 0.5, 1.0, 0.5, 0.5, 1.0, 0.5, 0.5, 1.0]


def test_a_plan_runs_to_its_end_before_the_next_is_made(clock: Clock) -> None:
    model = Model(clock, 0.5)
    serve_closed(model, policies.dynamic_program(padded, 1), Closed("", SEQUENCES[::-1], 5))
    assert model.batches == [[n] for n in (6, 7, 8, 9, 10, 1, 2, 3, 4, 5)]


def test_requests_are_not_served_before_they_come_and_count_where_none_answers(
    clock: Clock,
) -> None:
    arrivals = [Arrival(at, index, "") for index, at in enumerate((0.0, 2.0, 2.25, 3.9))]
    model = Model(clock, 0.5)
    found = serve_open(model, policies.in_order(2), Open("", SEQUENCES, arrivals, 4.0))
    assert model.batches == [[1], [2], [3], [4]]
    assert found.waited == [pytest.approx(each) for each in (0.5, 0.5, 0.75, 0.1)]
    assert (found.unanswered, found.batches) == (1, 3)


def test_the_table_has_rates_and_latencies_and_marks_who_was_not_answered() -> None:
    where = {"model": "BERT-base", "lengths": "2-100", "system": "fusewire", "policy": "in order"}
    where |= {"most": 20, "seconds": 20.0}
    busy = turbo_report.statistics(Served(2.0, [0.5] * 100, 0, 10))
    late = turbo_report.statistics(Served(2.0, [0.5] * 98 + [2.0] * 2, 2, 10))
    assert (busy["responses_per_s"], busy["requests_per_batch"]) == (50.0, 10.0)
    assert late["responses_per_s"] == 49.0
    rows = [where | busy | {"share": 0.0}, where | late | {"share": 0.95}]
    assert turbo_report.table(rows).splitlines()[2:] == [
        "| tokens | system | batches | responses/s | at 95% |",
        "|---|---|---|---|---|",
        "| 2-100 | fusewire | in order | 50.0 | 500 / 2000* |",
    ]


class Wrong:
    """Answers what was never computed."""

    def ask(self, drawn: list[np.ndarray]) -> np.ndarray:
        return np.zeros((sum(map(len, drawn)), 384), np.float32)


@pytest.mark.sweep
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_answers_are_checked_before_anything_is_timed(device: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    random_bert.write(tmp_path, "MiniLM-L6")
    given = tmp_path, device, 1, 12, 3
    with (
        Worker("transformers", service, "transformers", *given) as padded,
        Worker("fusewire", service, "fusewire", *given) as packed,
    ):
        workers = {"transformers": padded, "fusewire": packed}
        turbo.check(workers, tmp_path, device, 1, 12)
        asked = Closed("dynamic program", SEQUENCES, 3)
        assert all(len(each.ask(asked).waited) == 10 for each in workers.values())
        with pytest.raises(SystemExit, match="answers: off by"):
            turbo.check(workers | {"fusewire": Wrong()}, tmp_path, device, 1, 12)  # type: ignore[dict-item]

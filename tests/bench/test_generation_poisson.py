"""Arrivals, both ways to batch, and what is made of the times, on requests made up here."""

from __future__ import annotations

import argparse
import queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fusewire.engine.continuation import Delta

from tests.bench import generation_arrivals as arrivals
from tests.bench import generation_poisson as poisson
from tests.bench.generation_arrivals import Continuous, Request, RunToCompletion
from tests.bench.generation_curves import table, times_at_equal_p99
from tests.bench.gpu.generation_workload import gpt


class Engine:
    """Takes requests; `end` ends the oldest."""

    def __init__(self) -> None:
        self.running: list[tuple[queue.SimpleQueue[Any], Any]] = []

    def submit(
        self, prompt: list[int], parameters: Any, told: queue.SimpleQueue[Any], tag: Any
    ) -> Any:
        self.running.append((told, tag))
        return SimpleNamespace(cancel=lambda: None)

    def end(self) -> None:
        told, tag = self.running.pop(0)
        told.put((tag, Delta(0, "", 1, 0.0, (), 0.0, 1, "length")))


def test_nobody_joins_a_batch_that_runs_to_completion() -> None:
    engine = Engine()
    policy: Any = RunToCompletion(engine, 2)  # type: ignore[arg-type]
    for _ in range(4):
        policy.offer(Request(0.0, [1], 1))
    begun = []
    while engine.running:
        begun.append(len(engine.running))
        engine.end()
        policy.listen(0.0)
    assert begun == [1, 2, 1, 1]  # the first alone, two of those that waited, the last


def test_everybody_joins_continuous_batching() -> None:
    engine = Engine()
    policy: Any = Continuous(engine, 2)  # type: ignore[arg-type]
    for _ in range(4):
        policy.offer(Request(0.0, [1], 1))
    assert len(engine.running) == 4


def test_arrivals_come_at_the_rate_that_was_asked_for() -> None:
    found = arrivals.requests(50.0, 100.0, 300)
    assert len(found) == pytest.approx(5000, rel=0.1)
    assert found == arrivals.requests(50.0, 100.0, 300)
    assert max(len(request.prompt) for request in found) == arrivals.PROMPT[2]
    assert {request.new for request in found} <= set(range(1, arrivals.ANSWER[2] + 1))


def test_who_still_waits_in_the_end_counts_with_the_wait() -> None:
    early = Request(0.0, [1], 3, [10.1, 10.4, 11.5], done=True)
    late = Request(1.0, [1], 3)
    found = arrivals.statistics([early, late], began=10.0, begin=10.0, end=13.0)
    assert (found["requests"], found["answered"], found["tokens_per_s"]) == (2, 1, 1.0)
    assert found["first_token_ms_p50"] == pytest.approx((100 + 2000) / 2)
    assert found["inter_token_ms_p50"] == pytest.approx(700)


def test_policies_are_compared_where_nobody_waits_longer() -> None:
    rows = [
        {"policy": policy, "tokens_per_s": tokens, "first_token_ms_p99": p99}
        for policy, tokens, p99 in (
            (Continuous.name, 100.0, 10.0),
            (Continuous.name, 300.0, 50.0),
            (Continuous.name, 400.0, 900.0),
            (RunToCompletion.name, 90.0, 60.0),
            (RunToCompletion.name, 150.0, 1000.0),
        )
    ]
    found = times_at_equal_p99(rows)
    assert [(each["p99_ms"], each["times"]) for each in found] == [(60.0, 3.33), (1000.0, 2.67)]


def test_a_run_leaves_a_row_for_each_rate_and_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(poisson.MODELS, "small", gpt("Tiny", 48, 1, 4))
    monkeypatch.setattr(arrivals, "PROMPT", (8, 0.5, 16))
    monkeypatch.setattr(arrivals, "ANSWER", (4, 0.5, 8))
    options = argparse.Namespace(
        device="cpu", model="small", seconds=0.5, shares=[0.5], sequences=2
    )
    rows = poisson.run(options)
    assert [row["policy"] for row in rows] == list(arrivals.POLICIES)
    assert all(row["answered"] > 0 < row["tokens_per_s"] for row in rows)
    assert table(rows).count("(50%)") == 2

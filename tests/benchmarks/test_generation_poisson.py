"""Arrivals, both ways to batch, and what is made of the times, on requests made up here."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fusewire.engine.continuation import Delta

from benchmarks import arrivals, generation_arrivals, goals, records, tables
from benchmarks import generation_curves as curves
from benchmarks import generation_poisson as poisson
from benchmarks.arrivals import Request
from benchmarks.generation_arrivals import Continuous, RunToCompletion
from benchmarks.generation_curves import CONTINUOUS, RUN_TO_COMPLETION
from benchmarks.gpu import goals as gpu_goals
from benchmarks.gpu import tables as gpu_tables
from benchmarks.gpu.generation_workload import gpt
from benchmarks.records import latest


class Engine:
    """Takes requests; `end` ends the oldest."""

    def __init__(self) -> None:
        self.running: list[Callable[[Delta], None]] = []

    def submit(self, request: Any, deadline: None, callback: Callable[[Delta], None]) -> Any:
        self.running.append(callback)
        return SimpleNamespace(cancel=lambda: None)

    def end(self) -> None:
        callback = self.running.pop(0)
        callback(Delta(0, "", 1, 0.0, (), 0.0, 1, "length"))


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
    assert found["without_token"] == 1
    assert found["first_token_ms_p50"] == pytest.approx((100 + 2000) / 2)
    assert found["inter_token_ms_p50"] == pytest.approx(700)


def test_an_overloaded_policy_takes_no_longer_than_others() -> None:
    engine: Any = Engine()  # answers nobody
    engine.counts = lambda: SimpleNamespace(running=0, waiting=0)
    offered = [Request((at + 0.5) / 1000, [1], 1) for at in range(100)]
    began = time.perf_counter()
    found = generation_arrivals.measured(RunToCompletion(engine, 2), offered, 0.1)
    assert 0.1 <= time.perf_counter() - began < 60
    assert found["without_token"] == found["requests"] == 80  # of 100, less the warm-up
    assert found["first_token_ms_p99"] >= 75


def row(policy: str, share: float, tokens: float, p99: float) -> dict[str, Any]:
    where = {"cpu": "a processor", "threads": 2, "time": "2026-01-02T03:04:05Z", "device": "cpu"}
    who = {"benchmark": "generation_poisson", "system": "fusewire", "versions": {"fusewire": "1"}}
    case = {"model": "GPT", "sequences": 8, "case": f"{share}, {policy}", "seconds": 5.0}
    load = {"prompt": [64, 0.8, 512], "answer": [48, 0.9, 256], "share": share, "rate": 9 * share}
    seen = {"tokens_per_s": tokens, "first_token_ms_p50": 5.0, "first_token_ms_p99": p99}
    seen |= {"inter_token_ms_p50": 1.5, "inter_token_ms_p99": 2.5}
    counts = {"policy": policy, "requests": 40, "without_token": 3, "disturbed": 0.0}
    return where | who | case | load | seen | counts


ROWS = [
    row(CONTINUOUS, 0.9, 400.0, 900.0),
    row(CONTINUOUS, 0.1, 100.0, 10.0),
    row(CONTINUOUS, 0.5, 300.0, 50.0),
    row(RUN_TO_COMPLETION, 0.1, 90.0, 60.0),
    row(RUN_TO_COMPLETION, 0.5, 150.0, 1000.0),
]


def test_policies_are_compared_where_nobody_waits_longer() -> None:
    found = curves.times_at_equal_p99(ROWS)
    assert [(each["p99_ms"], each["times"]) for each in found] == [(60.0, 3.33), (1000.0, 2.67)]
    quick = row(RUN_TO_COMPLETION, 0.1, 90.0, 9.0)  # continuous batching is nowhere as quick
    assert [each["times"] for each in curves.times_at_equal_p99([*ROWS, quick])][2] == 0.0


def test_the_goal_is_held_where_continuous_batching_gains_least() -> None:
    goal = curves.goals(ROWS)
    assert [(each.wanted, each.measured, each.reached) for each in goal] == [
        (">= 2.0", "2.67", True)
    ]
    assert curves.goals(ROWS[:3]) == []  # nothing to compare with
    assert not curves.goals([*ROWS, row(RUN_TO_COMPLETION, 0.9, 201.0, 1000.0)])[0].reached


def test_the_table_lists_both_policies_by_load() -> None:
    lines = curves.tables(ROWS).splitlines()
    cells = [line.split(" | ") for line in lines if "%" in line and line.startswith("|")]
    assert [line[0] for line in cells] == ["| 10%", "| 10%", "| 50%", "| 50%", "| 90%"]
    assert "| 50% | 4.50 | continuous | 300 | 5.0 | 50.0 | 3 of 40 | 1.5 | 2.5 |" in lines
    assert lines[-1].endswith("by the load of run to completion: 3.33 (10%), 2.67 (50%).")


def test_models_and_limits_that_cannot_be_compared_have_tables_of_their_own() -> None:
    other = [each | {"sequences": 16, "case": f"16, {each['case']}"} for each in ROWS]
    assert curves.tables([*ROWS, *other]).count("Times the throughput") == 2


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_rows_of_a_file_are_listed_and_drawn(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    rows, drawing = tmp_path / "rows.jsonl", tmp_path / f"curves.{suffix}"
    records.append(rows, ROWS)
    monkeypatch.setattr("sys.argv", ["generation_curves", str(rows), "--plot", str(drawing)])
    curves.main()
    assert capsys.readouterr().out == curves.tables(ROWS) + "\n"
    assert drawing.stat().st_size > 1000


def test_a_file_without_rows_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["generation_curves", str(tmp_path / "rows.jsonl")])
    with pytest.raises(SystemExit, match=r"rows\.jsonl: got no rows, wanted those of python -m"):
        curves.main()


def test_readme_has_the_table_of_a_processor_and_of_a_gpu(tmp_path: Path) -> None:
    records.append(tmp_path / "generation_poisson.jsonl", ROWS)
    assert tables.markdown(tmp_path).startswith(curves.tables(ROWS) + "\n\n2026-01-02, a ")
    assert [goal.measured for goal in goals.goals(tmp_path)] == ["2.67"]
    where = {"gpu": "a GPU", "driver": "1.2.3", "cuda": "13.0"}
    records.append(tmp_path / "gpu.jsonl", [each | where for each in ROWS])
    found = gpu_tables.markdown(tmp_path / "gpu.jsonl")
    assert found.startswith(curves.tables(ROWS) + "\n\n2026-01-02, a GPU")
    assert [goal.measured for goal in gpu_goals.goals(tmp_path / "gpu.jsonl")] == ["2.67"]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    monkeypatch.setitem(poisson.MODELS, "small", gpt("Tiny", 48, 1, 4))
    monkeypatch.setattr(arrivals, "PROMPT", (8, 0.5, 16))
    monkeypatch.setattr(arrivals, "ANSWER", (4, 0.5, 8))
    given = {"device": "cpu", "model": "small", "seconds": 0.5, "shares": [0.5], "sequences": 2}
    return argparse.Namespace(**given, out=tmp_path / "rows.jsonl")


def test_a_run_leaves_a_row_for_each_rate_and_policy(tiny: argparse.Namespace) -> None:
    rows = poisson.run(tiny)
    assert [row["policy"] for row in rows] == list(generation_arrivals.POLICIES)
    assert all(row["answered"] > 0 < row["tokens_per_s"] for row in rows)
    assert curves.tables(latest(tiny.out)["generation_poisson"]) == curves.tables(rows)


def test_a_run_that_is_cut_keeps_what_it_measured(
    tiny: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(policy: Continuous, *load: Any) -> dict[str, Any]:
        if policy.name == RUN_TO_COMPLETION:
            raise KeyboardInterrupt
        return generation_arrivals.measured(policy, *load)

    monkeypatch.setattr(poisson, "measured", cut)
    with pytest.raises(KeyboardInterrupt):
        poisson.run(tiny)
    assert [row["policy"] for row in latest(tiny.out)["generation_poisson"]] == [CONTINUOUS]

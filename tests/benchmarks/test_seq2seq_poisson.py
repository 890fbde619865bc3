"""Translation of texts that arrive at random: what is made of the times, and a run of each way."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import goals, records, tables, translating_at_once
from benchmarks import seq2seq_poisson as poisson
from benchmarks import seq2seq_poisson_report as report
from benchmarks.arrivals import Request
from benchmarks.generation_curves import CONTINUOUS, RUN_TO_COMPLETION
from benchmarks.gpu import goals as gpu_goals
from benchmarks.gpu import tables as gpu_tables
from benchmarks.translating_at_once import measured


class Translated:
    """Translates what it is offered within `seconds`, those of an even number of tokens. It listens
    as long as its clock says, which nothing else moves."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.now = 100.0

    def offer(self, request: Request) -> None:
        if request.new % 2 == 0:
            request.times.append(self.now + self._seconds)
            request.done = True

    def listen(self, until: float) -> None:
        self.now = max(self.now, until)

    def stop(self) -> None:
        pass


Measured = Callable[[float, list[Request], float], dict[str, Any]]


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """What is measured of texts that are translated within so many seconds."""

    def of(within_s: float, offered: list[Request], seconds: float) -> dict[str, Any]:
        policy = Translated(within_s)
        clock = SimpleNamespace(perf_counter=lambda: policy.now)
        monkeypatch.setattr(translating_at_once, "time", clock)
        return measured(policy, offered, seconds)

    return of


def test_texts_without_a_translation_count_with_their_wait(translated: Measured) -> None:
    offered = [Request(0.01 * at, [1], 2 + at % 2) for at in range(1, 40)]
    found = translated(0.0, offered, 0.405)
    assert found["requests"] == 31  # less the warm-up
    assert found["without_answer"] == 16
    assert found["answer_ms_p50"] == 15  # half of them in no time
    assert found["answer_ms_p99"] == pytest.approx(309, abs=1)
    assert found["ms_per_token_p99"] == pytest.approx(found["answer_ms_p99"] / 3, rel=0.01)
    assert found["tokens_per_s"] == pytest.approx(15 * 2 / (0.8 * 0.405), rel=0.01)


def test_what_ends_after_the_run_has_not_ended(translated: Measured) -> None:
    found = translated(9.0, [Request(0.05, [1], 2)], 0.1)
    assert (found["without_answer"], found["tokens_per_s"]) == (1, 0.0)


def test_translations_are_about_as_long_as_their_sources() -> None:
    found = poisson.requests(poisson.MIXED, 50.0, 100.0, 300, seed=1)
    assert len(found) == pytest.approx(5000, rel=0.1)
    lengths = [len(request.prompt) for request in found]
    assert max(lengths) == poisson.SOURCE[2]
    ratios = sorted(each.new / length for each, length in zip(found, lengths, strict=True))
    assert ratios[len(ratios) // 2] == pytest.approx(1, rel=0.05)
    assert {token for each in found for token in each.prompt} <= set(range(2, 299))
    fixed = poisson.requests(poisson.FIXED, 50.0, 1.0, 300, seed=1)
    assert {request.new for request in fixed} == {poisson.ALIKE}


def row(policy: str, share: float, tokens: float, p99: float) -> dict[str, Any]:
    where = {"cpu": "a processor", "threads": 2, "time": "2026-01-02T03:04:05Z"}
    who = {"benchmark": report.BENCHMARK, "system": "fusewire", "versions": {"fusewire": "1"}}
    case = {"model": "Marian", "beams": 4, "texts": 8, "case": f"{share}, {policy}", "seconds": 5.0}
    load = {"source": [22, 0.6, 100], "work": "mixed", "share": share, "rate": 9 * share}
    seen = {"tokens_per_s": tokens, "answer_ms_p50": 50.0, "answer_ms_p99": 30 * p99}
    seen |= {"ms_per_token_p50": 1.5, "ms_per_token_p99": p99}
    counts = {"policy": policy, "requests": 40, "without_answer": 3, "disturbed": 0.0}
    return where | who | case | load | seen | counts


ROWS = [
    row(CONTINUOUS, 0.9, 400.0, 90.0),
    row(CONTINUOUS, 0.5, 300.0, 5.0),
    row(RUN_TO_COMPLETION, 0.5, 100.0, 6.0),
    row(RUN_TO_COMPLETION, 0.9, 150.0, 100.0),
]


def test_policies_are_compared_where_nobody_waits_longer() -> None:
    found = report.times_at_equal_p99(ROWS, RUN_TO_COMPLETION)
    assert [each["times"] for each in found] == [3.0, 2.67]
    assert report.times_at_equal_p99(ROWS, report.CTRANSLATE2) == []
    assert [(each.measured, each.reached) for each in report.goals(ROWS)] == [("2.67", True)]
    slower = report.goals([*ROWS, row(report.CTRANSLATE2, 0.5, 200.0, 6.0)])
    assert [(each.measured, each.reached) for each in slower] == [("2.67", True), ("1.50", False)]


def test_the_page_has_the_table_of_a_processor_and_of_a_gpu(tmp_path: Path) -> None:
    records.append(tmp_path / poisson.FILE, ROWS)
    assert tables.markdown(tmp_path).startswith(report.tables(ROWS) + "\n\n2026-01-02, a ")
    assert [goal.measured for goal in goals.goals(tmp_path)] == ["2.67"]
    where = {"gpu": "a GPU", "driver": "1.2.3", "cuda": "13.0"}
    records.append(tmp_path / "gpu.jsonl", [each | where for each in ROWS])
    found = gpu_tables.markdown(tmp_path / "gpu.jsonl")
    assert found.startswith(report.tables(ROWS) + "\n\n2026-01-02, a GPU")
    assert [goal.measured for goal in gpu_goals.goals(tmp_path / "gpu.jsonl")] == ["2.67"]


def test_a_run_has_a_row_for_each_work_rate_and_policy(tmp_path: Path) -> None:
    given = {"device": "cpu", "seconds": 0.5, "shares": [0.5], "texts": 2, "without_rivals": True}
    options = argparse.Namespace(**given, works=[poisson.MIXED, poisson.FIXED])
    small = {"vocab_size": 99, "d_model": 16}
    small |= {f"{side}_layers": 1 for side in ("encoder", "decoder")}
    small |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    rows = list(poisson.run(options, **small))
    ways = [CONTINUOUS, RUN_TO_COMPLETION]
    works = [poisson.MIXED, poisson.FIXED]
    assert [(row["work"], row["policy"]) for row in rows] == [(w, p) for w in works for p in ways]
    assert all(row["tokens_per_s"] > 0 for row in rows)
    assert len(report.tables(rows).splitlines()) > 10

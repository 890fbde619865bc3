"""Systems that translation is compared with give our tokens, and rows compare with ours."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import goals, records, seq2seq, seq2seq_report, tables
from benchmarks.seq2seq import System, Turn, Work, check, rows_of_case, sources_of
from benchmarks.seq2seq_rivals import write_marian

VOCABULARY = 99
TINY = {
    "d_model": 32,
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("marian")
    assert write_marian(path, vocab_size=VOCABULARY, **TINY) == VOCABULARY
    return path


@pytest.fixture(scope="module")
def ours(folder: Path) -> Any:
    with System("fusewire", folder, 1) as system:
        yield system


@pytest.mark.parametrize("name", ["ctranslate2", "transformers"])
def test_a_system_translates_to_our_tokens(name: str, folder: Path, ours: System) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    with System(name, folder, 1) as theirs:
        for beams in (1, 4):
            work = Work(sources_of(3, (2, 9), VOCABULARY, seed=0), beams, 7)
            found = theirs.run(work)
            assert found == ours.run(work)
            assert [len(text) for text in found] == [7, 7, 7]
            assert len({token for text in found for token in text}) > 3
        turn = theirs.time(work, 2)
        assert len(turn.seconds) == len(turn.cpu_s) == 2
        assert min(turn.cpu_s) > 0


def test_other_tokens_stop_the_benchmark() -> None:
    def system(name: str, token: int) -> Any:
        return SimpleNamespace(name=name, run=lambda work: [[token]] * len(work.sources))

    check([system("fusewire", 1), system("ctranslate2-int8", 2)], VOCABULARY, [1], 1)
    with pytest.raises(SystemExit, match="ctranslate2: got other tokens with 4 beams"):
        check([system("fusewire", 1), system("ctranslate2", 2)], VOCABULARY, [4], 1)


def test_sources_are_spread_and_have_neither_end_nor_padding() -> None:
    sources = sources_of(8, seq2seq.LENGTHS["8..56"], VOCABULARY, seed=1)
    lengths = sorted(map(len, sources))
    assert (lengths[0], lengths[-1], sum(lengths)) == (8, 56, 8 * 32)
    assert {0, 1, VOCABULARY - 1}.isdisjoint({token for each in sources for token in each})
    assert [len(each) for each in sources_of(1, (8, 56), VOCABULARY, seed=1)] == [32]


def test_rows_and_goals_compare_with_ours_by_time_and_by_work() -> None:
    turns = {
        "fusewire": [Turn([3.0], 0.0, [3.0]), Turn([1.0, 2.0], 0.0, [2.0, 2.5])],
        "ctranslate2": [Turn([5.0], 0.0, [2.5])],
        "fusewire-int8": [Turn([0.5], 0.0, [0.8])],
        "ctranslate2-int8": [Turn([1.0], 0.0, [1.0])],
    }
    facts = {"case": "1", "sources": 1, "model": "Marian"}
    rows = rows_of_case(turns, 32, facts)
    assert [row["times_fusewire"] for row in rows] == [1.0, 2.5, 0.25, 0.5]
    assert [row["cpu_times_fusewire"] for row in rows] == [1.0, 1.25, 0.4, 0.5]
    assert [row["dtype"] for row in rows] == ["float32", "float32", "int8", "int8"]
    (goal,) = seq2seq_report.goals(rows)
    assert (goal.measured, goal.wanted, goal.reached) == ("1.25", ">= 1.3", False)
    assert seq2seq_report.goals(rows_of_case(turns, 32, facts | {"sources": 32}))[0].reached
    last = seq2seq_report.table(rows).splitlines()[-1]
    systems = "2000 / 2000 | 5000 / 2500 | 500 / 800 | 1000 / 1000"
    assert last == f"| 1 | {systems} | 2.50 / 1.25 | 2.00 / 1.25 |"


def test_readme_has_the_table_and_the_goals(tmp_path: Path) -> None:
    where = {"benchmark": "seq2seq", "cpu": "a processor", "threads": 2, "time": "2026-01-02T03Z"}
    turns = {name: [Turn([1.0], 0.0, [1.0])] for name in ("fusewire", "ctranslate2")}
    rows = rows_of_case(turns, 32, {**where, "case": "1", "sources": 1, "model": "Marian"})
    records.append(tmp_path / "seq2seq.jsonl", rows)
    assert tables.markdown(tmp_path).startswith(seq2seq_report.table(rows) + "\n\n2026-01-02, a ")
    assert [goal.reached for goal in goals.goals(tmp_path)] == [False]

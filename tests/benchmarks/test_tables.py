"""Goals and tables of the benchmarks on a CPU, on rows made up here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import goals, records, tables

WHERE = {"cpu": "a processor", "threads": 2, "time": "2026-01-02T03:04:05Z"}


def encoder_row(system: str, ms: float, **changes: Any) -> dict[str, Any]:
    row = {"model": "MiniLM-L6", "case": "mixed 32", "system": system, "median_ms": ms}
    return WHERE | row | {"version": "1.0", "times_best_rival": 1.3, "disturbed": 0.0} | changes


def served_row(case: str, ratio: float, goal: float) -> dict[str, Any]:
    speeds = {"engine_tokens_per_s": 1000.0, "served_tokens_per_s": 1000.0 * ratio}
    row = {"model": "MiniLM-L6", "case": case, "goal": goal, "under_way": 2, "disturbed": 0.3}
    return WHERE | speeds | row | {"served_over_engine": ratio, "versions": {"fusewire": "0.1"}}


def generation_row(
    case: str, system: str, step: float | None, times: float | None
) -> dict[str, Any]:
    row = {"model": "GPT-2", "case": case, "system": system, "new_tokens": 64, "disturbed": 0.0}
    taken = {"step_ms": step, "step_times_fusewire": times}
    for what in ("prompt", "whole"):
        taken |= {f"{what}_ms": 100.0, f"{what}_times_fusewire": 1.0}
    return WHERE | row | taken | {"sequences": int(case[0]), "versions": {"fusewire": "0.1"}}


def write(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    records.append(folder / f"{name}.jsonl", [{"benchmark": name, **row} for row in rows])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rivals = [encoder_row("transformers", 300.0), encoder_row("torch-packed", 130.0)]
    write(tmp_path, "encoder", encoder_row("fusewire", 100.0), *rivals)
    reached = served_row("batch mixed texts", 0.95, 0.9)
    write(tmp_path, "served", reached, served_row("single sentences ids", 0.7, 0.8))
    return tmp_path


def test_goals_stand_beside_what_was_measured(results: Path) -> None:
    found = {goal.what: (goal.wanted, goal.measured, goal.reached) for goal in goals.goals(results)}
    assert found == {
        "MiniLM-L6 mixed 32, times the best rival (torch-packed)": (">= 1.25", "1.30", True),
        "MiniLM-L6 mixed 32, times transformers": (">= 1.9", "3.00", True),
        "served batch mixed texts, of the engine's tokens/s": (">= 90%", "95.0%", True),
        "served single sentences ids, of the engine's tokens/s": (">= 80%", "70.0%", False),
    }


def test_generation_is_held_to_ctranslate2_by_its_steps(tmp_path: Path) -> None:
    rows = [
        generation_row("1x128", "fusewire", 20.0, 1.0),
        generation_row("1x128", "ctranslate2", 20.0, 1.0),
        generation_row("8x128", "fusewire", 30.0, 1.0),
        generation_row("8x128", "ctranslate2", 30.0, 1.0),
        generation_row("8x128..512", "fusewire", 40.0, 1.0),
        generation_row("8x128..512", "ctranslate2", None, None),
    ]
    write(tmp_path, "generation", *rows)
    found = {goal.what: (goal.wanted, goal.reached) for goal in goals.goals(tmp_path)}
    assert found == {
        "GPT-2 1x128 step, times ctranslate2": (">= 1", True),
        "GPT-2 8x128 step, times ctranslate2": ("> 1", False),
    }
    table = tables.markdown(tmp_path)
    assert "| 8x128 | 30.0 / 100 / 100 | 30.0 (1.00) / 100 (1.00) / 100 (1.00) |" in table
    assert "| 8x128..512 | 40.0 / 100 / 100 | none / 100 (1.00) / 100 (1.00) |" in table


def test_encode_stands_beside_sentence_transformers(tmp_path: Path) -> None:
    row = {"model": "MiniLM-L6", "case": "8 to 40 words, sorted", "texts": 512, "disturbed": 0.0}
    row |= WHERE | {"versions": {"fusewire": "0.1"}}
    ours = {"system": "fusewire", "texts_per_s": 300.0, "times_sentence_transformers": 2.0}
    write(tmp_path, "encode", row | ours)
    write(tmp_path, "encode", row | {"system": "sentence-transformers", "texts_per_s": 150.0})
    found = tables.markdown(tmp_path)
    assert "| 8 to 40 words, sorted | 300 | 150 | 2.00 |" in found
    assert found.startswith("Embedding 512 texts, MiniLM-L6, texts/s:")


def test_a_row_that_is_taken_again_is_there_once(results: Path) -> None:
    rows = records.read(results)
    assert records.newest([*rows, *rows]) == records.newest(rows)


def test_the_newest_run_of_a_case_counts(results: Path) -> None:
    later = {"time": "2026-01-03T00:00:00Z"}
    rivals = [encoder_row("transformers", 200.0, **later)]
    write(results, "encoder", encoder_row("fusewire", 160.0, **later), *rivals)
    first = goals.goals(results)[0]
    assert (first.measured, first.reached) == ("1.25", True)
    assert first.what.endswith("(transformers)")


def test_results_of_another_processor_are_left_out(results: Path) -> None:
    other = encoder_row("fusewire", 1.0, cpu="another", case="1x16") | {"benchmark": "encoder"}
    lines = (results / "encoder.jsonl").read_text()
    (results / "encoder.jsonl").write_text(json.dumps(other) + "\n" + lines)
    assert {row["cpu"] for row in records.latest(results)["encoder"]} == {"a processor"}


def test_tables_name_hardware_versions_and_disturbance(results: Path) -> None:
    found = tables.markdown(results)
    assert "| MiniLM-L6 mixed 32 | 100.0 | 300.0 | 130.0 | 1.30 |" in found
    assert "2026-01-02, a processor, 2 threads" in found
    assert "Other processes took up to 30% of the cores' time" in found


def test_no_results_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"run python -m benchmarks"):
        tables.markdown(tmp_path)

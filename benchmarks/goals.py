"""The goals of each benchmark on a CPU, with the values of its newest rows."""

from __future__ import annotations

from pathlib import Path

from benchmarks import (
    generation_curves,
    seq2seq_poisson_report,
    seq2seq_report,
    training_report,
    weight_formats_report,
)
from benchmarks.encoder_report import GOALS as ENCODER_GOALS
from benchmarks.goal import Goal
from benchmarks.records import Rows, latest
from tests.tolerance import PEAK_OVER_BOUND


def goals(results: Path) -> list[Goal]:
    """Returns the goals of every benchmark that has results."""
    found = latest(results)
    return [
        goal for name, goals_of in _GOALS.items() if name in found for goal in goals_of(found[name])
    ]


def _encoder(rows: Rows) -> list[Goal]:
    ms = {(row["model"], row["case"], row["system"]): row["median_ms"] for row in rows}
    found = []
    for (model, case, against), wanted in ENCODER_GOALS.items():
        rivals = {
            system: value
            for (m, c, system), value in ms.items()
            if (m, c) == (model, case) and system != "fusewire" and against in ("best", system)
        }
        if not rivals or (model, case, "fusewire") not in ms:
            continue
        rival = min(rivals, key=lambda system: rivals[system])
        ratio = rivals[rival] / ms[model, case, "fusewire"]
        label = f"the best rival ({rival})" if against == "best" else rival
        found.append(
            Goal(f"{model} {case}, times {label}", f">= {wanted}", f"{ratio:.2f}", ratio >= wanted)
        )
    return found


def _generation(rows: Rows) -> list[Goal]:
    """Returns the goals of generation by step time, for prompts of one length: one sequence is not
    slower than CTranslate2, eight are faster."""
    found = []
    for row in rows:
        ratio = row["step_times_fusewire"]
        if row["system"] != "ctranslate2" or ratio is None:
            continue
        alone = row["sequences"] == 1
        what = f"{row['model']} {row['case']} step, times ctranslate2"
        reached = ratio >= 1.0 if alone else ratio > 1.0
        found.append(Goal(what, ">= 1" if alone else "> 1", f"{ratio:.2f}", reached))
    return found


def _memory(rows: Rows) -> list[Goal]:
    own = next(row for row in rows if row["system"] == "fusewire")
    over, warm = own["worst_peak_over_bound"], own["allocations_second_pass"]
    return [
        Goal(
            "BERT-base workspace peak, times the liveness bound",
            f"<= {PEAK_OVER_BOUND}",
            f"{over:.3f}",
            over <= PEAK_OVER_BOUND,
        ),
        Goal("allocations after warm-up", "0", str(warm), warm == 0),
    ]


def _served(rows: Rows) -> list[Goal]:
    return [
        Goal(
            f"served {row['case']}, of the engine's tokens/s",
            f">= {row['goal']:.0%}",
            f"{row['served_over_engine']:.1%}",
            row["served_over_engine"] >= row["goal"],
        )
        for row in rows
    ]


def _python_api(rows: Rows) -> list[Goal]:
    return [
        Goal(
            f"{row['system']}, {row['model']} {row['case']}, of the engine's rate",
            f">= {row['goal']:.0%}",
            f"{row['share_of_engine']:.1%}",
            row["share_of_engine"] >= row["goal"],
        )
        for row in rows
        if row["goal"] is not None
    ]


def markdown(results: Path) -> str:
    lines = ["| goal | wanted | measured | |", "|---|---|---|---|"]
    for goal in goals(results):
        verdict = "reached" if goal.reached else "**missed**"
        lines.append(f"| {goal.what} | {goal.wanted} | {goal.measured} | {verdict} |")
    return "\n".join(lines)


_GOALS = {
    "encoder": _encoder,
    "generation": _generation,
    generation_curves.BENCHMARK: generation_curves.goals,
    "seq2seq": seq2seq_report.goals,
    seq2seq_poisson_report.BENCHMARK: seq2seq_poisson_report.goals,
    training_report.BENCHMARK: training_report.goals,
    training_report.MEMORY: training_report.memory_goals,
    "memory": _memory,
    "served": _served,
    "python_api": _python_api,
    weight_formats_report.BENCHMARK: weight_formats_report.goals,
}

"""What the last run of each benchmark says: the goals beside the measured, and the README's tables.

Everything is read from bench-results/*.jsonl, so no number gets into a text by hand.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import generation_curves, machine
from tests.bench.encoder_report import GOALS as ENCODER_GOALS
from tests.bench.goal import Goal
from tests.tolerance import PEAK_OVER_BOUND

Rows = list[dict[str, Any]]
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
# More than this taken by other processes, and ratios are more noise than measurement.
DISTURBED = 0.1


def goals(results: Path) -> list[Goal]:
    """Of every benchmark that has results."""
    found = []
    for name, goals_of in (
        ("encoder", _encoder),
        ("generation", _generation),
        (generation_curves.BENCHMARK, generation_curves.goals),
        ("memory", _memory),
        ("served", _served),
        ("python_api", _python_api),
    ):
        rows = machine.latest(results / f"{name}.jsonl")
        found += goals_of(rows) if rows else []
    return found


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
    """One sequence not slower than CTranslate2, eight faster; by steps, of prompts of a length."""
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


def goals_markdown(results: Path) -> str:
    lines = ["| goal | wanted | measured | |", "|---|---|---|---|"]
    for goal in goals(results):
        verdict = "reached" if goal.reached else "**missed**"
        lines.append(f"| {goal.what} | {goal.wanted} | {goal.measured} | {verdict} |")
    return "\n".join(lines)


def readme_markdown(results: Path) -> str:
    """The tables between the README's markers; SystemExit when nothing was measured."""
    tables = [
        table(rows)
        for name, table in (
            ("encoder", _encoder_table),
            ("generation", _generation_table),
            (generation_curves.BENCHMARK, _generation_poisson_table),
            ("served", _served_table),
            ("memory", _memory_table),
            ("gemm", _gemm_table),
        )
        if (rows := machine.latest(results / f"{name}.jsonl"))
    ]
    if not tables:
        raise SystemExit(f"results: got none in {results}, wanted some; run python -m tests.bench")
    return "\n\n".join(tables)


def write_readme(readme: Path, results: Path) -> None:
    """Replaces what stands between the two markers."""
    if not readme.is_file():
        raise SystemExit(
            f"{readme}: not there; write it with the lines {BEGIN} and {END}, then run this again"
        )
    text = readme.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"{readme}: wanted {BEGIN} and after it {END}, each once; add them")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    tables = readme_markdown(results)
    readme.write_text(f"{before}{BEGIN}\n{tables}\n{END}{after}", encoding="utf-8")


def _where(rows: Rows, versions: dict[str, str]) -> str:
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    threads = "/".join(str(count) for count in sorted({row["threads"] for row in rows}))
    day = max(row["time"] for row in rows)[:10]
    text = f"{day}, {rows[0]['cpu']}, {threads} threads, fp32; {named}."
    worst = max((row.get("disturbed", 0.0) for row in rows), default=0.0)
    if worst > DISTURBED:
        text += f" Other processes took up to {worst:.0%} of the cores' time."
    return text


def _encoder_table(rows: Rows) -> str:
    systems = list(dict.fromkeys(row["system"] for row in rows))
    found = {(row["model"], row["case"], row["system"]): row for row in rows}
    lines = [
        "Encoders, median ms (last hidden state; mixed: 32 sequences of 5 to 128 tokens):",
        "",
        f"| | {' | '.join(systems)} | times the best rival |",
        "|---" * (len(systems) + 2) + "|",
    ]
    for model, case in dict.fromkeys((row["model"], row["case"]) for row in rows):
        cells = [
            f"{found[model, case, system]['median_ms']:.1f}"
            if (model, case, system) in found
            else ""
            for system in systems
        ]
        ratio = found[model, case, "fusewire"]["times_best_rival"]
        lines.append(f"| {model} {case} | {' | '.join(cells)} | {ratio:.2f} |")
    versions = {row["system"]: row["version"] for row in rows}
    return "\n".join([*lines, "", _where(rows, versions)])


def _generation_table(rows: Rows) -> str:
    """A line a case; of each system the step, of ours the prompt pass too."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    found = {(row["case"], row["system"]): row for row in rows}
    lines = [
        f"Generation, {rows[0]['model']}, greedy, {rows[0]['new_tokens']} tokens behind each "
        "prompt (sequences x tokens of a prompt), median ms of a step / until all had their first "
        "token / of all; in brackets how many times as long as fusewire in the same round:",
        "",
        f"| | {' | '.join(systems)} |",
        "|---" * (1 + len(systems)) + "|",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        cells = []
        for system in systems:
            row = found[case, system]
            values = []
            for what, digits in (("step", 1), ("prompt", 0), ("whole", 0)):
                ms, times = row[f"{what}_ms"], row[f"{what}_times_fusewire"]
                if ms is None:
                    values.append("none")
                else:
                    ratio = "" if system == "fusewire" else f" ({times:.2f})"
                    values.append(f"{ms:.{digits}f}{ratio}")
            cells.append(" / ".join(values))
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _where(rows, rows[0]["versions"])])


def _generation_poisson_table(rows: Rows) -> str:
    return f"{generation_curves.tables(rows)}\n\n{_where(rows, rows[0]['versions'])}"


def _served_table(rows: Rows) -> str:
    lines = [
        "Served over gRPC by the embedded Triton, client on the same cores, MiniLM-L6, tokens/s "
        "(mixed: 5 to 128 tokens, sentences: 8 to 40):",
        "",
        "| requests | under way | engine alone | served | |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        kind, lengths, form = row["case"].split()
        size = "32 a request" if kind == "batch" else "1 a request"
        lines.append(
            f"| {lengths}, {form}, {size} | {row['under_way']} | "
            f"{row['engine_tokens_per_s']:.0f} | {row['served_tokens_per_s']:.0f} | "
            f"{row['served_over_engine']:.0%} |"
        )
    return "\n".join([*lines, "", _where(rows, rows[0]["versions"])])


def _memory_table(rows: Rows) -> str:
    own = next(row for row in rows if row["system"] == "fusewire")
    lines = [
        "Temporary memory, BERT-base, 150 requests of 5 to 500 tokens, one after the other:",
        "",
        "| | mean peak MiB | highest peak MiB | allocations | allocations, lengths seen before |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['system']} | {row['peak_mib_mean']:.1f} | {row['peak_mib_max']:.1f} | "
            f"{row['allocations_first_pass']} | {row['allocations_second_pass']} |"
        )
    bound = own["worst_peak_over_bound"]
    note = f"fusewire's planned peak is at most {bound:.3f} times the liveness bound. "
    versions = {row["system"]: row["version"] for row in rows if "version" in row}
    return "\n".join([*lines, "", note + _where(rows, versions)])


def _gemm_table(rows: Rows) -> str:
    """Medians over the shapes, of the fastest calls: the quietest that the machine was."""
    lines = [
        "Our GEMM with bias and erf GELU, times as fast as oneDNN 2023.2 (median of eight shapes "
        "of MiniLM-L6 and BERT-base; first call: a row count not seen before):",
        "",
        "| rows | " + " | ".join(_gemm_columns(rows)) + " |",
        "|---" * (1 + len(_gemm_columns(rows))) + "|",
    ]
    for call, value, label in (
        ("known", "times_onednn_fastest", ""),
        ("new", "times_onednn", ", first call"),
    ):
        for count in sorted({row["rows"] for row in rows if row["call"] == call}):
            cells = [
                f"{median(r[value] for r in rows if _gemm_key(r) == (call, count, threads)):.2f}"
                for threads in sorted({row["threads"] for row in rows})
            ]
            lines.append(f"| {count}{label} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _where(rows, rows[0]["versions"])])


def _gemm_key(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["call"], row["rows"], row["threads"]


def _gemm_columns(rows: Rows) -> list[str]:
    counts = sorted({row["threads"] for row in rows})
    return [f"{count} thread{'s' if count > 1 else ''}" for count in counts]

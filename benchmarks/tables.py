"""The tables of the benchmarks on a CPU; all values come from rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import (
    chaos_report,
    generation_curves,
    overload_report,
    products_4_bits_report,
    seq2seq_poisson_report,
    seq2seq_report,
    training_report,
    turbo_report,
    weight_formats_report,
    weight_memory_report,
)
from benchmarks.case_table import case_table, systems_of
from benchmarks.machine import DISTURBED
from benchmarks.records import Row, Rows, latest


def markdown(results: Path) -> str:
    """Returns every table. Raises SystemExit when nothing was measured."""
    found = latest(results)
    tables = [table(found[name]) for name, table in TABLES.items() if name in found]
    if not tables:
        raise SystemExit(f"results: got none in {results}, wanted some; run python -m benchmarks")
    return "\n\n".join(tables)


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
    systems = systems_of(rows)

    def cells(of_case: dict[str, Row]) -> list[str]:
        found = map(of_case.get, systems)
        ratio = of_case["fusewire"]["times_best_rival"]
        return [*(f"{row['median_ms']:.1f}" if row else "" for row in found), f"{ratio:.2f}"]

    lines = [
        "Encoders, median ms (last hidden state; mixed: 32 sequences of 5 to 128 tokens):",
        "",
        *case_table([*systems, "speedup over the fastest other"], rows, cells, between=" "),
    ]
    versions = {row["system"]: row["version"] for row in rows}
    return "\n".join([*lines, "", _where(rows, versions)])


def _encode_table(rows: Rows) -> str:
    found = {(row["case"], row["system"]): row for row in rows}
    lines = [
        f"Embedding {rows[0]['texts']} texts, {rows[0]['model']}, texts/s:",
        "",
        "| texts | fusewire | sentence-transformers | times |",
        "|---|---|---|---|",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        own, other = found[case, "fusewire"], found[case, "sentence-transformers"]
        lines.append(
            f"| {case} | {own['texts_per_s']:.0f} | {other['texts_per_s']:.0f} | "
            f"{own['times_sentence_transformers']:.2f} |"
        )
    return "\n".join([*lines, "", _where(rows, rows[0]["versions"])])


def _generation_table(rows: Rows) -> str:
    """Returns a table with a line per case: the step of each system, and our prompt pass."""
    systems = systems_of(rows)
    found = {(row["case"], row["system"]): row for row in rows}
    lines = [
        f"Generation, {rows[0]['model']}, greedy, {rows[0]['new_tokens']} tokens after each "
        "prompt (sequences x tokens of a prompt), median ms of a step / until every sequence had "
        "its first token / of the whole run; in brackets, times fusewire's in the same round:",
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


def _above(table: Callable[[Rows], str]) -> Callable[[Rows], str]:
    """Returns `table` followed by where it was measured."""
    return lambda rows: f"{table(rows)}\n\n{_where(rows, rows[0]['versions'])}"


def _seq2seq_table(rows: Rows) -> str:
    versions = {row["system"]: row["version"] for row in rows}
    return f"{seq2seq_report.table(rows)}\n\n{_where(rows, versions)}"


def _served_table(rows: Rows) -> str:
    lines = [
        "Served over gRPC by the embedded Triton, client on the same cores, MiniLM-L6, tokens/s "
        "(mixed: 5 to 128 tokens, sentences: 8 to 40):",
        "",
        "| requests | in flight | engine alone | served | served / engine |",
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
    """Returns medians over the shapes, of the fastest calls: those least disturbed by the
    machine."""
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


TABLES: dict[str, Callable[[Rows], str]] = {
    "encoder": _encoder_table,
    "encode": _encode_table,
    "generation": _generation_table,
    generation_curves.BENCHMARK: _above(generation_curves.tables),
    "seq2seq": _seq2seq_table,
    seq2seq_poisson_report.BENCHMARK: lambda rows: seq2seq_poisson_report.tables(
        rows, lambda of: _where(of, of[0]["versions"])
    ),
    "served": _served_table,
    "overload": lambda rows: overload_report.tables(rows, lambda of: _where(of, of[0]["versions"])),
    turbo_report.BENCHMARK: _above(turbo_report.table),
    training_report.BENCHMARK: _above(training_report.table),
    training_report.MEMORY: _above(training_report.memory_table),
    chaos_report.CHAOS: chaos_report.chaos_table,
    chaos_report.SOAK: chaos_report.soak_table,
    "memory": _memory_table,
    "gemm": _gemm_table,
    weight_formats_report.BENCHMARK: _above(weight_formats_report.table),
    products_4_bits_report.BENCHMARK: _above(products_4_bits_report.table),
    weight_memory_report.BENCHMARK: _above(weight_memory_report.table),
}

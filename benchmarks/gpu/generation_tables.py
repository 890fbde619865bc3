"""The tables of generation, one function per part; all values come from rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.records import Rows

Found = dict[str, dict[str, Any]]  # system -> its row


def _step(rows: Rows) -> str:
    return _table(
        "One greedy step in fp16, language head and sampling included: device ms, median "
        "(with the host: inputs packed and tokens read at each step; engine: between two tokens of "
        "the whole engine; floor: weights, keys and values over the same run's copy bandwidth):",
        rows,
        "batch x context",
        {
            "with the host": lambda own: _number(own, "with_host_ms", ".3f"),
            "engine": lambda own: _number(own, "wall_ms", ".3f"),
            "floor": lambda own: _number(own, "floor_ms", ".3f"),
            "times the floor": lambda own: _number(own, "times_floor", ".2f"),
        },
    )


def _prompt(rows: Rows) -> str:
    return _table(
        "Prompts in fp16: device ms, median (share: of the same run's 8192³ matmul rate, real "
        "tokens' FLOPs only, causal attention's half):",
        rows,
        "prompts x tokens",
        {"share": lambda own: _number(own, "share_of_matmul", ".0%")},
    )


def _eet(rows: Rows) -> str:
    return _table(
        "EET's grid in fp16, greedy, prompt and answer together 1024 tokens: ms for all of it "
        "(floor: bytes of the steps over the copy bandwidth, FLOPs of the prompt over the matmul "
        "rate):",
        rows,
        "batch x tokens, prompt",
        {
            "floor": lambda own: _number(own, "floor_ms", ".0f"),
            "ms a token": lambda own: _number(own, "ms_per_token", ".3f"),
            "times transformers": lambda own: _number(own, "times_transformers", ".2f"),
        },
        "run_ms",
        ".0f",
    )


def _context(rows: Rows) -> str:
    return _table(
        "A step as contexts grow, fp16: device ms, median (grown: times the shortest context, and "
        "the bytes that a step reads):",
        rows,
        "batch x context",
        {
            "with the host": lambda own: _number(own, "with_host_ms", ".3f"),
            "times the floor": lambda own: _number(own, "times_floor", ".2f"),
            "grown": lambda own: _number(own, "times_shortest", ".3f"),
            "bytes grown": lambda own: _number(own, "bytes_times_shortest", ".3f"),
        },
    )


TABLES: dict[str, Callable[[Rows], str]] = {
    "step": _step,
    "prompt": _prompt,
    "eet": _eet,
    "context": _context,
}


def _table(
    title: str,
    rows: Rows,
    label: str,
    columns: dict[str, Callable[[dict[str, Any] | None], str]],
    unit: str = "device_ms",
    form: str = ".3f",
) -> str:
    """Returns a table with a line per case in the order of batch and length; the columns are the
    systems, then values of our own."""
    names = dict.fromkeys(row["system"] for row in rows)
    systems = sorted(names, key=lambda name: not name.startswith("fusewire"))
    found: dict[tuple[str, str], Found] = {}
    for row in sorted(rows, key=_order):
        found.setdefault((row["model"], row["case"].partition(" ")[2]), {})[row["system"]] = row
    lines = [
        title,
        "",
        f"| {label} | {' | '.join([*systems, *columns])} |",
        "|---" * (1 + len(systems) + len(columns)) + "|",
    ]
    for (model, case), of_case in found.items():
        cells = [_number(of_case.get(system), unit, form) for system in systems]
        cells += [column(of_case.get("fusewire")) for column in columns.values()]
        lines.append(f"| {model} {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["model"], row.get("batch", 0), row.get("context", row.get("prompt", 0))


def _number(row: dict[str, Any] | None, key: str, form: str) -> str:
    return format(row[key], form) if row is not None and key in row else ""

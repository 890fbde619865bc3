"""The rows that benchmarks measure, one JSON object per line: new rows in `bench-results`, and
those of the documentation in `docs/results`. Needs neither torch nor a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path("bench-results")
GPU_RESULTS = RESULTS / "gpu.jsonl"

Row = dict[str, Any]
Rows = list[Row]


def append(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read(path: Path) -> Rows:
    """Returns the rows of a file, or of every *.jsonl file in a folder; none where neither
    exists."""
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path] if path.is_file() else []
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return [json.loads(line) for line in lines if line.strip()]


def latest(path: Path, *, gpu: bool = False) -> dict[str, Rows]:
    """Returns benchmark -> the newest rows of each of its cases, of CPUs or of GPUs; all rows of a
    benchmark are from the hardware where it was last measured."""
    return newest([row for row in read(path) if ("gpu" in row) == gpu])


def newest(rows: Rows) -> dict[str, Rows]:
    last = {row["benchmark"]: row for row in sorted(rows, key=lambda row: row["time"])}
    rows = [row for row in rows if _hardware(row) == _hardware(last[row["benchmark"]])]
    times: dict[tuple[str, str, str], str] = {}
    for row in rows:
        times[_case(row)] = max(times.get(_case(row), ""), row["time"])
    found: dict[str, Rows] = {}
    for row in rows:
        kept = found.setdefault(row["benchmark"], [])
        if row["time"] == times[_case(row)] and row not in kept:
            kept.append(row)
    return found


def _hardware(row: Row) -> str:
    return row["gpu"] if "gpu" in row else row["cpu"]


def _case(row: Row) -> tuple[str, str, str]:
    return row["benchmark"], row.get("model", ""), row.get("case", "")

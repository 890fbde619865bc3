"""The file that the GPU's benchmarks leave their rows in; needs neither torch nor a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.bench import machine

RESULTS = machine.RESULTS / "gpu.jsonl"
Rows = list[dict[str, Any]]


def latest(path: Path) -> dict[str, Rows]:
    """Benchmark -> the newest rows of each of its cases, of the GPU (if any) that was last measured
    on."""
    if not path.is_file():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    rows = [row for row in rows if row.get("gpu") == rows[-1].get("gpu")]
    newest = {_case(row): row["time"] for row in rows}
    found: dict[str, Rows] = {}
    for row in rows:
        if row["time"] == newest[_case(row)]:
            found.setdefault(row["benchmark"], []).append(row)
    return found


def _case(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["benchmark"], row.get("model", ""), row["case"]

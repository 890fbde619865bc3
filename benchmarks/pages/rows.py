"""The committed rows: docs/results/{cpu,gpu}/<benchmark>.jsonl.

Rows of 2026-11-22 and earlier, and of weight_formats_gpu of 2026-11-29, have the fields and digits
of the tables that they came from.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import tables
from benchmarks.gpu import tables as gpu_tables
from benchmarks.records import Rows, latest, newest, read

COMMITTED = Path("docs/results")
# The benchmarks with a table on the page, by kind of device.
KINDS = {"cpu": tables.TABLES, "gpu": gpu_tables.TABLES}


def committed(folder: Path) -> dict[str, dict[str, Rows]]:
    """Returns kind of device -> benchmark -> its rows."""
    return {kind: latest(folder / kind, gpu=kind == "gpu") for kind in KINDS}


def take(source: Path, folder: Path) -> dict[str, int]:
    """Replaces committed rows by newer ones of the same cases; on other hardware all rows of a
    benchmark are replaced. Returns the number of rows taken, by benchmark."""
    taken: dict[str, int] = {}
    for kind, known in KINDS.items():
        for name, rows in latest(source, gpu=kind == "gpu").items():
            if name not in known:
                continue
            path = folder / kind / f"{name}.jsonl"
            kept = newest([*read(path), *rows])[name]
            taken[f"{kind}/{name}"] = sum(row in rows for row in kept)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    if not taken:
        raise SystemExit(
            f"{source}: got no rows of a benchmark on the page, run python -m benchmarks first"
        )
    return taken

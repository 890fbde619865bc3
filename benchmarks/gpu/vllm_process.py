"""The processes of a comparison with vLLM: one after the other, so that each system has the GPU for
itself, and vLLM's in the environment that has the torch it was compiled for."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.gpu.generation_workload import SHAPES
from benchmarks.records import GPU_RESULTS, Rows

OURS, THEIRS = "fusewire", "vllm"
# side(system, python, model, rows measured before): the rows of one system for one model.
Side = Callable[[str, str, str, Rows], Rows]
Table = Callable[[Rows], str]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--vllm-python",
        default=sys.executable,
        metavar="PATH",
        help="the interpreter that has vllm (default: this one)",
    )
    parser.add_argument("--out", type=Path, default=GPU_RESULTS, help="the file of rows")


def compare(
    options: Namespace, benchmark: str, systems: Sequence[str], side: Side, table: Table
) -> None:
    """Measures the systems, in this order, for each of the models; adds the rows to the file and
    prints them and their table."""
    require_vllm(options.vllm_python)
    pythons = {OURS: sys.executable, THEIRS: options.vllm_python}
    facts = where()
    rows: Rows = []
    for model, system in product(options.models, systems):
        name = SHAPES[model].name
        print(f"== {name}: {system}", flush=True)
        of_both = facts | {"benchmark": benchmark, "model": name}
        found = [named(system, row, of_both) for row in side(system, pythons[system], model, rows)]
        print("\n".join(json.dumps(row) for row in found), flush=True)
        rows += found
    rows = with_both_versions(rows)
    records.append(options.out, rows)
    print(f"{table(rows)}\nrows added to {options.out}")


def require_vllm(python: str) -> None:
    """Raises SystemExit, with the remedy, where that interpreter has no vllm."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    if subprocess.run([python, "-c", code]).returncode:
        raise SystemExit(
            f"vllm: {python} does not have it; install it into an environment of its own "
            "(python -m venv vllm-env && vllm-env/bin/pip install vllm==0.24.0) and pass "
            "--vllm-python vllm-env/bin/python"
        )


def where() -> dict[str, Any]:
    """Returns the facts of the GPU, asked for in a process that frees its memory."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_where).result()


def _where() -> dict[str, Any]:
    from benchmarks.gpu import facts

    return facts.where()


def rows_of(system: str, command: list[str], cases: int) -> Rows:
    """Returns the rows that a process writes to the file named by its last argument, which is added
    here. Raises SystemExit if it fails or writes others than `cases` of them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        status = subprocess.run([*command, str(out)]).returncode
        rows = records.read(out)
    if status or len(rows) != cases:
        raise SystemExit(
            f"{system}: its process ended with status {status} after {len(rows)} of {cases} "
            "cases; see its output above"
        )
    return rows


def named(system: str, row: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the row with the facts, and with the torch of its side told from the other's."""
    versions = row["versions"]
    own = {system: versions[system], f"torch ({system})": versions["torch"]}
    return {**facts, "system": system, "dtype": "float16", **row, "versions": own}


def with_both_versions(rows: Rows) -> Rows:
    """Returns the rows with the versions of both sides, as a table takes them from any row."""
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    return [row | {"versions": versions} for row in rows]

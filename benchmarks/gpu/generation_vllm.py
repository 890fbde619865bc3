"""Compares generation by our engine with vLLM's, each in its own process, on the same GPU: `python
-m benchmarks.gpu.generation_vllm [--models gpt2 qwen-0.5b qwen-1.5b llama-8b]`.

Random weights of the published shapes in fp16, greedy, 128 new tokens for each prompt, all prompts
submitted at once, host work included. A step is (time for 128 tokens - time for 8) / 120.

vLLM brings the torch it was compiled for, so it is best installed in an environment of its own:

    python -m venv vllm-env && vllm-env/bin/pip install vllm==0.24.0
    python -m benchmarks.gpu.generation_vllm --vllm-python vllm-env/bin/python

Appends to bench-results/gpu.jsonl and prints the rows and a table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.gpu.beside_vllm import CASES
from benchmarks.gpu.generation_workload import SHAPES
from benchmarks.gpu.tables import TABLES
from benchmarks.records import GPU_RESULTS, Rows

BENCHMARK = "generation_vllm"
OURS, THEIRS = "fusewire", "vllm"
MODULES = {OURS: "benchmarks.gpu.beside_vllm_own", THEIRS: "benchmarks.gpu.beside_vllm_theirs"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument(
        "--vllm-python",
        default=sys.executable,
        metavar="PATH",
        help="the interpreter that has vllm (default: this one)",
    )
    parser.add_argument("--out", type=Path, default=GPU_RESULTS, help="the file of rows")
    options = parser.parse_args()
    require_vllm(options.vllm_python)
    pythons = {OURS: sys.executable, THEIRS: options.vllm_python}
    # In another process, so that the GPU's memory is freed.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        facts = pool.submit(where).result()
    rows: Rows = []
    for model in options.models:
        for system, python in pythons.items():
            print(f"== {SHAPES[model].name}: {system}", flush=True)
            found = [row_of(system, model, row, facts) for row in side(python, system, model)]
            print("\n".join(json.dumps(row) for row in found), flush=True)
            rows += found
    # Every row has the versions of both sides, as a table takes them from any of its rows.
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    records.append(options.out, [row | {"versions": versions} for row in rows])
    print(f"{TABLES[BENCHMARK](rows)}\nrows added to {options.out}")


def where() -> dict[str, Any]:
    from benchmarks.gpu import facts

    return facts.where()


def require_vllm(python: str) -> None:
    """Raises SystemExit, with the remedy, where that interpreter has no vllm."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    if subprocess.run([python, "-c", code]).returncode:
        raise SystemExit(
            f"vllm: {python} does not have it; install it into an environment of its own "
            "(python -m venv vllm-env && vllm-env/bin/pip install vllm==0.24.0) and pass "
            "--vllm-python vllm-env/bin/python"
        )


def side(python: str, system: str, model: str) -> Rows:
    """Returns the rows of one system, measured in its process. Raises SystemExit if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        command = [python, "-m", MODULES[system], model, str(out)]
        status = subprocess.run(command).returncode
        rows = records.read(out)
    if status or len(rows) != len(CASES[model]):
        raise SystemExit(
            f"{system}: its process ended with status {status} after {len(rows)} of "
            f"{len(CASES[model])} cases; see its output above"
        )
    return rows


def row_of(
    system: str, model: str, measured: dict[str, Any], facts: dict[str, Any]
) -> dict[str, Any]:
    named = {"benchmark": BENCHMARK, "system": system, "model": SHAPES[model].name}
    # Each side has its own torch.
    versions = measured["versions"]
    torch = {f"torch ({system})": versions["torch"]}
    own = {system: versions[system]} | torch
    return {**facts, **named, "dtype": "float16", **measured, "versions": own}


if __name__ == "__main__":
    main()

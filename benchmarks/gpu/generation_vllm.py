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
import sys

from benchmarks import records
from benchmarks.gpu import vllm_process
from benchmarks.gpu.beside_vllm import CASES
from benchmarks.gpu.generation_workload import SHAPES
from benchmarks.gpu.tables import TABLES
from benchmarks.gpu.vllm_process import OURS, THEIRS
from benchmarks.records import Rows

BENCHMARK = "generation_vllm"
MODULES = {OURS: "benchmarks.gpu.beside_vllm_own", THEIRS: "benchmarks.gpu.beside_vllm_theirs"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(CASES), default=list(CASES))
    vllm_process.add_arguments(parser)
    options = parser.parse_args()
    vllm_process.require_vllm(options.vllm_python)
    pythons = {OURS: sys.executable, THEIRS: options.vllm_python}
    facts = vllm_process.where()
    rows: Rows = []
    for model in options.models:
        named = facts | {"benchmark": BENCHMARK, "model": SHAPES[model].name}
        for system, python in pythons.items():
            print(f"== {SHAPES[model].name}: {system}", flush=True)
            measured = side(system, python, model)
            found = [vllm_process.named(system, row, named) for row in measured]
            print("\n".join(json.dumps(row) for row in found), flush=True)
            rows += found
    records.append(options.out, vllm_process.with_both_versions(rows))
    print(f"{TABLES[BENCHMARK](rows)}\nrows added to {options.out}")


def side(system: str, python: str, model: str) -> Rows:
    command = [python, "-m", MODULES[system], model]
    return vllm_process.side(system, command, len(CASES[model]))


if __name__ == "__main__":
    main()

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

from benchmarks.gpu import vllm_process
from benchmarks.gpu.beside_vllm import CASES
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
    vllm_process.compare(options, BENCHMARK, (OURS, THEIRS), side, TABLES[BENCHMARK])


def side(system: str, python: str, model: str, before: Rows) -> Rows:
    command = [python, "-m", MODULES[system], model]
    return vllm_process.rows_of(system, command, len(CASES[model]))


if __name__ == "__main__":
    main()

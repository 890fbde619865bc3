"""Requests that arrive at random at our engine and at vLLM's, each in its own process, on the same
GPU: `python -m benchmarks.gpu.arrivals_vllm [--models llama-8b] [--seconds 10]`.

Random weights in fp16. Arrivals are a Poisson process; prompts and answers have log-normal lengths
(benchmarks/arrivals.py). Both engines have the defaults of their servers and stream each token to a
client in the engine's process, ours with its text, vLLM's as ids alone. The rates are shares of
vLLM's own capacity, its throughput while requests always wait. fusewire is measured at these rates
and at 1.15 times each: where its latencies there are not above vLLM's, its throughput at equal
latency is at least 1.15 times vLLM's.

vLLM needs an environment of its own; see `python -m benchmarks.gpu.generation_vllm --help`. Appends
to bench-results/gpu.jsonl and prints the rows and a table.
"""

from __future__ import annotations

import argparse

from benchmarks.gpu import vllm_process
from benchmarks.gpu.arrivals_beside_vllm import SHARES
from benchmarks.gpu.generation_workload import SHAPES
from benchmarks.gpu.tables import TABLES
from benchmarks.gpu.vllm_process import OURS, THEIRS
from benchmarks.records import Rows

BENCHMARK = "arrivals_vllm"
MODULES = {OURS: "benchmarks.gpu.arrivals_vllm_own", THEIRS: "benchmarks.gpu.arrivals_vllm_theirs"}

CASES = {THEIRS: len(SHARES), OURS: 2 * len(SHARES)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=["llama-8b"])
    parser.add_argument("--seconds", type=float, default=10.0, help="of arrivals at each rate")
    vllm_process.add_arguments(parser)
    options = parser.parse_args()

    def side(system: str, python: str, model: str, before: Rows) -> Rows:
        command = [python, "-m", MODULES[system], model, str(options.seconds)]
        if system == OURS:  # vLLM's rows of this model are the last
            command.append(str(before[-1]["capacities"][THEIRS]))
        return vllm_process.rows_of(system, command, CASES[system])

    vllm_process.compare(options, BENCHMARK, (THEIRS, OURS), side, TABLES[BENCHMARK])


if __name__ == "__main__":
    main()

"""Continuous against run-to-completion batching of one engine, with requests arriving at random.

    python -m benchmarks.generation_poisson [--device cuda --model llama-8b]

Arrivals are a Poisson process; the lengths of prompts and answers have a log-normal distribution,
as in chats. Run to completion: as many waiting requests as have room begin together, and none joins
before the last of them ends. Rates are shares of the throughput of continuous batching when
requests always wait. Requests that got no token before the end count with the time that they had
waited by then: a measurement takes `--seconds`, however high the load. Each measurement writes its
row (JSON, one object per line) at once to bench-results/generation_poisson.jsonl, that of a GPU to
bench-results/gpu.jsonl.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import product
from pathlib import Path

import torch
from fusewire import kernels
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings

from benchmarks import generation_curves, machine, records
from benchmarks.arrivals import ANSWER, PROMPT, requests
from benchmarks.generation_arrivals import POLICIES, Continuous, capacity, measured
from benchmarks.gpu import facts as gpu
from benchmarks.gpu.generation_models import (
    Place,
    own_model,
    tokenizer_folder,
    transformers_model,
)
from benchmarks.gpu.generation_workload import SHAPES, Shape
from benchmarks.machine import DISTURBED

FILE = f"{generation_curves.BENCHMARK}.jsonl"
# Larger than the caches, as real models are: all sequences of a step share what it reads.
SMALL = Shape("GPT 6x512", "gpt2", 512, 6, 8, 8, 2048, 4096, 1024)
MODELS = {"small": SMALL, **SHAPES}
PACKAGES = ("fusewire", "torch")
SHARES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=list(MODELS), default="small")
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals at each rate")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the capacity")
    parser.add_argument("--sequences", type=int, default=16, help="that run at the same time")
    parser.add_argument("--out", type=Path, help="the file of rows")
    options = parser.parse_args()
    if options.out is None:
        on_cpu = options.device == "cpu"
        options.out = records.RESULTS / FILE if on_cpu else records.GPU_RESULTS
    rows = run(options)
    print(generation_curves.tables(rows))
    worst = max(row["disturbed"] for row in rows)
    if worst > DISTURBED:
        print(f"NOT QUOTABLE: other processes took up to {worst:.0%} of the cores' time.")
    print(f"rows added to {options.out}; python -m benchmarks.generation_curves draws them")


def run(options: argparse.Namespace) -> records.Rows:
    """Measures and returns the rows; each is written to the file before the next is measured."""
    torch.set_grad_enabled(False)
    shape, on_cpu = MODELS[options.model], options.device == "cpu"
    place = Place(options.device, "float32" if on_cpu else "float16")
    model = own_model(transformers_model(shape, place), place)
    settings = GenerationSettings(
        max_sequences=options.sequences,
        max_length=PROMPT[2] + ANSWER[2],
        max_waiting=1 << 20,
        prefix_caching=False,
    )
    facts = machine.facts(*PACKAGES) if on_cpu else gpu.where(*PACKAGES)
    facts |= {"device": facts.get("gpu", "cpu"), "threads": kernels.num_threads()}
    facts |= {"benchmark": generation_curves.BENCHMARK, "system": "fusewire", "model": shape.name}
    facts |= {"prompt": PROMPT, "answer": ANSWER, "sequences": options.sequences}
    rows: records.Rows = []
    with tempfile.TemporaryDirectory() as folder:
        there = tokenizer_folder(Path(folder), shape.vocabulary)
        with GenerationEngine(there, settings, model=model) as engine:
            machine.settle()

            def saturated() -> float:
                waiting = requests(1.0, 8.0 * options.sequences, shape.vocabulary, seed=1)
                policy = Continuous(engine, options.sequences)
                return capacity(policy, waiting, options.sequences, options.seconds)

            saturated()  # warms up
            most = saturated()
            print(f"{shape.name}, {facts['device']}: at most {most:.2f} requests/s", flush=True)
            for share, (name, policy) in product(options.shares, POLICIES.items()):
                watch = machine.Watch()
                rate = share * most
                offered = requests(rate, options.seconds, shape.vocabulary)
                seen = measured(policy(engine, options.sequences), offered, options.seconds)
                row = {**facts, "case": f"{options.sequences} sequences, {share:.0%}, {name}"}
                row |= {"policy": name, "share": share, "rate": round(rate, 3)}
                row |= {"seconds": options.seconds, "disturbed": watch.disturbed()}
                rows.append(row | seen)
                records.append(options.out, rows[-1:])
                of = len(options.shares) * len(POLICIES)
                print(f"{len(rows)}/{of} {generation_curves.line(rows[-1])}", flush=True)
    return rows


if __name__ == "__main__":
    main()

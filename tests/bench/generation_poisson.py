"""Continuous against run-to-completion batching of the same engine, requests arriving as they do in
service: `python -m tests.bench.generation_poisson [--device cuda --model llama-8b]`.

Arrivals are a Poisson process; lengths of prompts and answers are drawn log-normal, as chats have
them. Run to completion: as many waiting requests as have room begin together, and nobody joins
before the last of them ends. Rates are shares of what continuous batching does when it never waits.
Requests that got no token before the end count with the time that they had waited by then.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings

from tests.bench import machine
from tests.bench.generation_arrivals import (
    ANSWER,
    POLICIES,
    PROMPT,
    Continuous,
    measured,
    requests,
)
from tests.bench.generation_curves import plot, table, times_at_equal_p99
from tests.bench.gpu.generation_models import (
    Place,
    own_model,
    tokenizer_folder,
    transformers_model,
)
from tests.bench.gpu.generation_workload import SHAPES, Shape
from tests.bench.summary import DISTURBED

FILE = "generation_poisson.jsonl"
# Too large for the caches, as models are: what a step reads, all its sequences share.
SMALL = Shape("GPT 6x512", "gpt2", 512, 6, 8, 8, 2048, 4096, 1024)
MODELS = {"small": SMALL, **SHAPES}
SHARES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.1)
GOAL = 2.0  # times the throughput, at equal p99


def capacity(engine: GenerationEngine, vocabulary: int, most: int) -> float:
    """Requests a second where enough of them always wait."""
    waiting = requests(1.0, 8.0 * most, vocabulary, seed=1)
    policy = Continuous(engine, most)
    began = time.perf_counter()
    for request in waiting:
        policy.offer(request)
    # The last ones run in steps that are no longer full.
    enough = len(waiting) - most
    while sum(request.done for request in waiting) < enough:
        policy.listen(time.perf_counter() + 0.002)
    taken = time.perf_counter() - began
    policy.stop()
    return enough / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=list(MODELS), default="small")
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals at each rate")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the capacity")
    parser.add_argument("--sequences", type=int, default=16, help="that run at the same time")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / FILE)
    parser.add_argument("--plot", type=Path, help="where to draw it: .svg or .png")
    options = parser.parse_args()
    rows = run(options)
    machine.append(options.out, rows)
    print(table(rows))
    worst = max(row["disturbed"] for row in rows)
    if worst > DISTURBED:
        print(f"Other processes took up to {worst:.0%} of the cores' time.")
    for each in times_at_equal_p99(rows):
        verdict = "reached" if each["times"] >= GOAL else "missed"
        print(
            f"{verdict:8} at {each['p99_ms']:.0f} ms p99 to the first token, times the throughput: "
            f"{each['times']:.2f}, wanted >= {GOAL}"
        )
    if options.plot:
        plot(rows, options.plot)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
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
    facts = machine.facts("fusewire", "torch")
    facts["device"] = "cpu" if on_cpu else torch.cuda.get_device_name()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        there = tokenizer_folder(Path(folder), shape.vocabulary)
        with GenerationEngine(there, settings, model=model) as engine:
            machine.settle()
            capacity(engine, shape.vocabulary, options.sequences)  # warm
            most = capacity(engine, shape.vocabulary, options.sequences)
            print(f"{shape.name}, {facts['device']}: at most {most:.2f} requests/s", flush=True)
            for share in options.shares:
                for name, policy in POLICIES.items():
                    watch = machine.Watch()
                    rate = share * most
                    offered = requests(rate, options.seconds, shape.vocabulary)
                    seen = measured(policy(engine, options.sequences), offered, options.seconds)
                    row = {"benchmark": "generation_poisson", "model": shape.name, **facts}
                    row |= {"case": f"{share}, {name}", "policy": name, "share": share}
                    row |= {"rate": round(rate, 3), "sequences": options.sequences}
                    row |= {"seconds": options.seconds, "disturbed": watch.disturbed()}
                    rows.append(row | seen)
                    print(table(rows[-1:]).splitlines()[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()

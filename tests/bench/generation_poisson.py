"""Continuous against run-to-completion batching of the same engine, requests arriving as they do in
service: `python -m tests.bench.generation_poisson [--device cuda --model llama-8b]`.

Arrivals are a Poisson process; lengths of prompts and answers are drawn log-normal, as chats have
them. Run to completion: as many waiting requests as have room begin together, and nobody joins
before the last of them ends. Rates are shares of what continuous batching does when it never waits.
Requests that got no token before the end count with the time that they had waited by then.
"""

from __future__ import annotations

import argparse
import queue
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fusewire.engine.continuation import Delta
from fusewire.engine.generation import GenerationEngine, Ticket
from fusewire.engine.generation_loop import Told
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.tasks.generation_parameters import GenerationParameters

from tests.bench import machine
from tests.bench.gpu.generation_models import (
    Place,
    own_model,
    tokenizer_folder,
    transformers_model,
)
from tests.bench.gpu.generation_workload import SHAPES, Shape

FILE = "generation_poisson.jsonl"
# Too large for the caches, as models are: what a step reads, all its sequences share.
SMALL = Shape("GPT 6x512", "gpt2", 512, 6, 8, 8, 2048, 4096, 1024)
MODELS = {"small": SMALL, **SHAPES}
SHARES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.1)
PROMPT, ANSWER = (64, 0.8, 512), (48, 0.9, 256)  # median, spread of the logarithm, most
GOAL = 2.0  # times the throughput, at equal p99
WARM = 0.2  # of the time, not measured


@dataclass
class Request:
    at: float  # seconds after the beginning
    prompt: list[int]
    new: int
    times: list[float] = field(default_factory=list)  # of its tokens
    done: bool = False


def requests(rate: float, seconds: float, vocabulary: int, seed: int = 0) -> list[Request]:
    """Those that arrive within so many seconds."""
    rng, found, at = np.random.default_rng(seed), [], 0.0
    while (at := at + rng.exponential(1 / rate)) < seconds:
        length, new = (_length(rng, *which) for which in (PROMPT, ANSWER))
        found.append(Request(at, rng.integers(0, vocabulary, length).tolist(), new))
    return found


def _length(rng: np.random.Generator, middle: float, spread: float, most: int) -> int:
    return int(min(most, max(1, rng.lognormal(np.log(middle), spread))))


class Continuous:
    """Every request begins as soon as the engine lets it."""

    name = "continuous"

    def __init__(self, engine: GenerationEngine, most: int) -> None:
        self._engine = engine
        self._tickets: list[Ticket] = []
        self.errors: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def offer(self, request: Request) -> None:
        parameters = GenerationParameters(max_new_tokens=request.new, ignore_eos=True)
        ticket = self._engine.submit(
            request.prompt, parameters, lambda told: self._told(request, told)
        )
        self._tickets.append(ticket)

    def stop(self) -> None:
        for ticket in self._tickets:
            ticket.cancel()
        while self._engine.counts().running or self._engine.counts().waiting:
            time.sleep(0.001)

    def _told(self, request: Request, told: Told) -> None:
        if not isinstance(told, Delta):
            self.errors.put(told)
            return
        if told.token is not None:  # else it was cancelled
            request.times.append(time.perf_counter())
            request.done = told.finish_reason is not None


class RunToCompletion(Continuous):
    """Nobody joins a batch that runs."""

    name = "run to completion"

    def __init__(self, engine: GenerationEngine, most: int) -> None:
        super().__init__(engine, most)
        self._most = most
        self._waiting: deque[Request] = deque()
        self._running = 0
        self._lock = threading.Lock()

    def offer(self, request: Request) -> None:
        with self._lock:
            self._waiting.append(request)
            self._begin()

    def stop(self) -> None:
        with self._lock:
            self._waiting.clear()
        super().stop()

    def _begin(self) -> None:
        if self._running:
            return
        batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
        self._running = len(batch)
        for request in batch:
            super().offer(request)

    def _told(self, request: Request, told: Told) -> None:
        super()._told(request, told)
        if not isinstance(told, Delta) or told.finish_reason is not None:
            with self._lock:
                self._running -= 1
                self._begin()


POLICIES: dict[str, Callable[[GenerationEngine, int], Continuous]] = {
    policy.name: policy for policy in (Continuous, RunToCompletion)
}


def measured(policy: Continuous, offered: list[Request], seconds: float) -> dict[str, Any]:
    """Offers each at its time; what was seen of those that came after the warm-up."""
    began = time.perf_counter()
    for request in offered:
        time.sleep(max(0.0, began + request.at - time.perf_counter()))
        policy.offer(request)
    time.sleep(max(0.0, began + seconds - time.perf_counter()))
    end = time.perf_counter()
    policy.stop()
    if not policy.errors.empty():
        raise policy.errors.get()
    return statistics(offered, began, began + WARM * seconds, end)


def statistics(offered: list[Request], began: float, begin: float, end: float) -> dict[str, Any]:
    """Of tokens between `begin` and `end`, and of the requests that came in between."""
    counted = [request for request in offered if began + request.at >= begin]
    first = [min([*request.times[:1], end]) - began - request.at for request in counted]
    gaps = [
        later - earlier
        for request in offered
        for earlier, later in pairwise(request.times)
        if begin <= earlier and later <= end
    ]
    tokens = sum(begin <= at < end for request in offered for at in request.times)
    return {
        "requests": len(counted),
        "answered": sum(request.done and request.times[-1] <= end for request in counted),
        "tokens_per_s": round(tokens / (end - begin), 1),
        **_percentiles("first_token_ms", first),
        **_percentiles("inter_token_ms", gaps),
    }


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"{name}_p{q}": round(float(np.percentile(seconds, q)) * 1e3, 2) for q in (50, 99)}


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
        time.sleep(0.002)
    taken = time.perf_counter() - began
    policy.stop()
    return enough / taken


def times_at_equal_p99(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """For each rate of run to completion: the most that continuous batching does while its p99 of
    the time to first token is no worse, times what run to completion does."""
    sides = {name: [row for row in rows if row["policy"] == name] for name in POLICIES}
    found = []
    for row in sides[RunToCompletion.name]:
        p99 = row["first_token_ms_p99"]
        best = [
            each["tokens_per_s"]
            for each in sides[Continuous.name]
            if each["first_token_ms_p99"] <= p99
        ]
        if best:
            found.append({"p99_ms": p99, "times": round(max(best) / row["tokens_per_s"], 2)})
    return found


def table(rows: list[dict[str, Any]]) -> str:
    columns = {
        "tokens_per_s": "tokens/s",
        "first_token_ms_p50": "first token p50",
        "first_token_ms_p99": "p99",
        "inter_token_ms_p50": "between tokens p50",
        "inter_token_ms_p99": "p99",
    }
    lines = [
        "| requests/s (share) | batching | " + " | ".join(columns.values()) + " |",
        "|---" * (2 + len(columns)) + "|",
    ]
    for row in rows:
        cells = [f"{row.get(key, float('nan')):.1f}" for key in columns]
        rate = f"{row['rate']:.2f} ({row['share']:.0%})"
        lines.append(f"| {rate} | {row['policy']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Percentiles over throughput."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    kinds = {"first_token_ms": "time to first token, ms", "inter_token_ms": "between tokens, ms"}
    for axes, (key, label) in zip(figure.subplots(1, 2), kinds.items(), strict=True):
        for color, name in zip(("C0", "C1"), POLICIES, strict=True):
            of_policy = [row for row in rows if row["policy"] == name]
            x = [row["tokens_per_s"] for row in of_policy]
            for q, line in ((50, "--"), (99, "-")):
                y = [row[f"{key}_p{q}"] for row in of_policy]
                axes.plot(x, y, line, marker="o", ms=3, color=color, label=f"{name}, p{q}")
        axes.set(xlabel="tokens/s", ylabel=label, yscale="log")
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    figure.savefig(path)


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
    model = own_model(
        transformers_model(shape, Place(options.device, "float32" if on_cpu else "float16")),
        Place(options.device, "float32" if on_cpu else "float16"),
    )
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

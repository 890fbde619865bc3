"""TurboTransformers' experiment with batches of requests of many lengths.

    python -m benchmarks.turbo [--device cuda]

BERT-base (random weights; fp32 on a CPU, fp16 on a GPU); lengths drawn uniformly from 2 to 100 and
from 5 to 500 tokens, the ranges of Fang et al. (PPoPP 2021). Policies: `alone` (no batching), `in
order` (the batches of a server that takes what waits), `dynamic program` (theirs, on the measured
cost of padded batches). The padded system runs batches padded to the longest; fusewire runs batches
in order, packed. No batch has more than `--most` requests. The policies and the queue are the same
program for all, without a network.

The outputs of every system for new random input are checked first. Then all systems get the same
requests in a closed loop (responses/s at saturation), and the same Poisson arrivals at shares of
the packed system's rate (latency p50 and p99; requests without an answer at the end count with the
time until then).

Writes bench-results/turbo.jsonl, of a GPU bench-results/gpu.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import arena, machine, overload_arrivals, random_bert, records, rivals, turbo_report
from benchmarks.machine import DISTURBED
from benchmarks.turbo_service import Closed, Open, Served, service
from benchmarks.worker import Worker
from tests.tolerance import MODEL_FP32

LENGTHS = {"2-100": (2, 100), "5-500": (5, 500)}
SHARES = (0.4, 0.7, 0.95)
UNDER_WAY = 4  # times the largest batch, in the closed loop
TIMES_TORCH = 2.0  # allowed difference of an fp16 output, as a multiple of that of transformers
PACKAGES = ("fusewire", "torch", "transformers", "onnxruntime")


class Contender(NamedTuple):
    system: str
    policy: str

    @property
    def name(self) -> str:
        return f"{self.system}, {self.policy}"


OWN = Contender("fusewire", "in order")


def contenders(padded: str) -> list[Contender]:
    return [OWN, *(Contender(padded, each) for each in ("alone", "in order", "dynamic program"))]


def check(workers: dict[str, Worker], folder: Path, device: str, threads: int, most: int) -> None:
    """Raises SystemExit where an output exceeds the tolerance, on new input."""
    seed = time.time_ns() % 2**32
    drawn = drawn_sequences(np.random.default_rng(seed), folder, (1, most), 6)
    with Worker("exact", service, "transformers", folder, "cpu", threads, most, 1) as exact:
        wanted = exact.ask(drawn)
    off = {name: float(np.abs(each.ask(drawn) - wanted).max()) for name, each in workers.items()}
    print(f"  max |difference| from transformers in fp32, seed {seed}: {off}", flush=True)
    rival = max(difference for name, difference in off.items() if name != "fusewire")
    allowed = MODEL_FP32 if device == "cpu" else TIMES_TORCH * rival
    if not off["fusewire"] <= allowed or (device == "cpu" and not rival <= allowed):
        raise SystemExit(f"answers: off by {off}, wanted at most {allowed:.1e}")


def drawn_sequences(
    rng: np.random.Generator, folder: Path, lengths: tuple[int, int], count: int
) -> list[np.ndarray]:
    words = rivals.vocabulary(folder)
    return [rng.integers(5, words, n) for n in rng.integers(lengths[0], lengths[1] + 1, count)]


def measure(
    name: str, workers: dict[str, Worker], folder: Path, options: argparse.Namespace
) -> records.Rows:
    """Measures and returns the rows; each is written to the file before the next is measured."""
    rows: records.Rows = []
    rng = np.random.default_rng(options.seed)
    under_way = UNDER_WAY * options.most
    few = drawn_sequences(rng, folder, LENGTHS[name], 2 * options.most)
    guess = workers["fusewire"].ask(Closed(OWN.policy, few, under_way))
    count = max(under_way, round(options.seconds * len(few) / guess.taken_s))
    sequences = drawn_sequences(rng, folder, LENGTHS[name], count)
    facts = machine.facts(*PACKAGES)
    if options.device != "cpu":
        # Imports torch, which a run on a CPU leaves to other processes.
        from benchmarks.gpu import facts as gpu

        facts = gpu.where(*PACKAGES)
    facts |= {"benchmark": turbo_report.BENCHMARK, "model": "BERT-base", "lengths": name}
    facts |= {"device": options.device, "threads": options.threads, "most": options.most}
    facts |= {"seconds": options.seconds}

    def add(who: Contender, what: str, served: Served, disturbed: float, share: float) -> None:
        row = {**facts, "case": f"{name}, {what}, {who.name}", "share": share}
        row |= {"system": who.system, "policy": who.policy, "disturbed": disturbed}
        rows.append(row | turbo_report.statistics(served))
        records.append(options.out, rows[-1:])
        print(turbo_report.line(rows[-1]), flush=True)

    for who in contenders(options.padded):
        watch = machine.Watch(*(each.pid for each in workers.values()))
        served = workers[who.system].ask(Closed(who.policy, sequences, under_way))
        add(who, "saturated", served, watch.disturbed(), 0.0)
    own = rows[0]["responses_per_s"]
    for share in options.shares:
        arrivals = overload_arrivals.poisson(share * own, options.seconds, count, options.seed)
        for who in contenders(options.padded):
            watch = machine.Watch(*(each.pid for each in workers.values()))
            asked = Open(who.policy, sequences, arrivals, options.seconds)
            add(who, f"{share:.0%}", workers[who.system].ask(asked), watch.disturbed(), share)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--lengths", nargs="+", choices=list(LENGTHS), default=list(LENGTHS))
    parser.add_argument("--padded", help="onnxruntime or transformers; default: of a CPU the first")
    parser.add_argument("--most", type=int, default=20, help="requests of a batch")
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals at each share")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    options.padded = options.padded or ("onnxruntime" if on_cpu else "transformers")
    if options.padded not in ("onnxruntime", "transformers")[not on_cpu :]:
        parser.error(f"padded: got {options.padded}, wanted transformers, or onnxruntime on a CPU")
    options.out = options.out or (
        records.RESULTS / "turbo.jsonl" if on_cpu else records.GPU_RESULTS
    )
    cpus = arena.pin(options.threads)
    print(f"cpus {cpus}; about {minutes(options):.1f} minutes and what loading takes", flush=True)
    rows: records.Rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        random_bert.write(folder, "BERT-base")
        for name in options.lengths:
            with contextlib.ExitStack() as stack:
                longest = LENGTHS[name][1]
                given = folder, options.device, options.threads, longest, options.most
                workers = {
                    system: stack.enter_context(Worker(system, service, system, *given))
                    for system in (OWN.system, options.padded)
                }
                check(workers, folder, options.device, options.threads, longest)
                rows += measure(name, workers, folder, options)
    print(turbo_report.table(rows))
    worst = max(row["disturbed"] for row in rows)
    if worst > DISTURBED:
        print(f"others took up to {worst:.0%} of the cores' time: run it again on a quiet machine")


def minutes(options: argparse.Namespace) -> float:
    """Predicts the minutes of a run. A closed loop of the padded system takes longer than ours,
    which sets the number of requests: at most three times as long, as observed."""
    closed = 1 + 3 * (len(contenders("")) - 1)
    opened = len(options.shares) * len(contenders(""))
    return len(options.lengths) * (closed + opened) * options.seconds / 60


if __name__ == "__main__":
    main()

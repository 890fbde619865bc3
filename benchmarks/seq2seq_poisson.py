"""Translation with beam search of texts that arrive at random.

    python -m benchmarks.seq2seq_poisson [--device cuda]

Marian of Transformer-base's size with random weights, whose texts never end by themselves, 4 beams.
Arrivals are a Poisson process; lengths have a log-normal distribution, as sentences of news.
Continuous batching is compared with run-to-completion batches of the same engine, at shares of the
throughput of continuous batching when requests always wait: the latency is from a text's arrival to
its translation. Texts without one at the end count with the time that they had waited by then: a
measurement takes `--seconds`.

`mixed`: translations about as long as their sources. `32 tokens`: all translations of this length,
as CTranslate2 stops the texts of a batch at one length. On a CPU it takes part, in fp32: a loop
translates all waiting texts, at most as many as the engine runs concurrently, then those that
arrived meanwhile.

Each measurement writes its row (JSON, one object per line) to bench-results/seq2seq_poisson.jsonl,
that of a GPU to bench-results/gpu.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings

from benchmarks import machine, records, seq2seq_poisson_report
from benchmarks.arrivals import Request
from benchmarks.generation_arrivals import Continuous, RunToCompletion
from benchmarks.generation_curves import CONTINUOUS, RUN_TO_COMPLETION
from benchmarks.machine import DISTURBED
from benchmarks.seq2seq_poisson_report import BENCHMARK, CTRANSLATE2
from benchmarks.seq2seq_rivals import write_marian
from benchmarks.translating_at_once import Rival, measured, requests_per_s

FILE = f"{BENCHMARK}.jsonl"
MODEL, BEAMS = "Marian base", 4
SOURCE = (22, 0.6, 100)  # median, standard deviation of the logarithm, maximum
STRETCH = 0.15  # standard deviation of the logarithm of a translation's length over its source's
MOST_NEW, ALIKE = 128, 32
MIXED, FIXED = "mixed", f"{ALIKE} tokens"
SHARES = (0.3, 0.5, 0.7, 0.9, 1.1)

Measure = Callable[[list[Request], float], dict[str, Any]]


def requests(work: str, rate: float, seconds: float, vocabulary: int, seed: int) -> list[Request]:
    """Returns the requests that arrive within `seconds`; tokens 0 and the last one are not part of
    texts."""
    rng, found, at = np.random.default_rng(seed), [], 0.0
    middle, spread, most = SOURCE
    while (at := at + rng.exponential(1 / rate)) < seconds:
        length = int(np.clip(rng.lognormal(np.log(middle), spread), 1, most))
        new = int(np.clip(length * rng.lognormal(0, STRETCH), 1, MOST_NEW))
        prompt = rng.integers(2, vocabulary - 1, length).tolist()
        found.append(Request(at, prompt, new if work == MIXED else ALIKE))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals at each rate")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the capacity")
    parser.add_argument("--texts", type=int, default=16, help="translated at the same time at most")
    parser.add_argument("--works", nargs="+", choices=[MIXED, FIXED], default=[MIXED, FIXED])
    parser.add_argument("--without-rivals", action="store_true", help="our engine alone")
    parser.add_argument("--out", type=Path, help="the file of rows")
    options = parser.parse_args()
    if options.out is None:
        on_cpu = options.device == "cpu"
        options.out = records.RESULTS / FILE if on_cpu else records.GPU_RESULTS
    rows = []
    for row in run(options):
        rows.append(row)
        records.append(options.out, rows[-1:])
        print(seq2seq_poisson_report.line(row), flush=True)
    print(seq2seq_poisson_report.tables(rows))
    worst = max(row["disturbed"] for row in rows)
    if worst > DISTURBED:
        print(f"NOT QUOTABLE: other processes took up to {worst:.0%} of the cores' time.")


def run(options: argparse.Namespace, **changes: Any) -> Iterator[dict[str, Any]]:
    """`changes`: to the model's configuration."""
    on_cpu = options.device == "cpu"
    settings = GenerationSettings(
        dtype="float32" if on_cpu else "float16",
        max_sequences=options.texts * BEAMS,
        max_waiting=1 << 20,
        prefix_caching=False,
    )
    facts = _facts(on_cpu) | {"benchmark": BENCHMARK, "model": MODEL, "beams": BEAMS}
    facts |= {"source": SOURCE, "texts": options.texts, "seconds": options.seconds}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        vocabulary = write_marian(Path(folder), **changes)
        rival, wanted = None, on_cpu and not options.without_rivals
        if wanted and importlib.util.find_spec(CTRANSLATE2) is None:
            print(f"{CTRANSLATE2}: not installed, left out; pip install {CTRANSLATE2}")
        elif wanted:
            there = Path(folder), facts["threads"], BEAMS, options.texts
            rival = stack.enter_context(Rival(*there))
        engine = stack.enter_context(GenerationEngine(folder, settings, options.device))
        machine.settle()
        for work in options.works:
            waiting = requests(work, 1.0, 6.0 * options.texts, vocabulary, seed=1)
            requests_per_s(Continuous(engine, options.texts, BEAMS), waiting)  # warms up
            most = requests_per_s(Continuous(engine, options.texts, BEAMS), waiting)
            systems = _systems(engine, rival if work == FIXED else None, options.texts)
            for share, (name, measure) in product(options.shares, systems.items()):
                rate = share * most
                offered = requests(work, rate, options.seconds, vocabulary, seed=2)
                case = {"case": f"{work}, {share:.0%}, {name}", "work": work, "policy": name}
                case |= {"system": CTRANSLATE2 if name == CTRANSLATE2 else "fusewire"}
                case |= {"share": share, "rate": round(rate, 3)}
                yield {**facts, **case, **measure(offered, options.seconds)}


def _systems(engine: GenerationEngine, rival: Rival | None, texts: int) -> dict[str, Measure]:
    def ours(policy: type[Continuous]) -> Measure:
        return lambda offered, seconds: measured(policy(engine, texts, BEAMS), offered, seconds)

    found = {CONTINUOUS: ours(Continuous), RUN_TO_COMPLETION: ours(RunToCompletion)}
    return found if rival is None else found | {CTRANSLATE2: rival.measured}


def _facts(on_cpu: bool) -> dict[str, Any]:
    from fusewire import kernels

    if on_cpu:
        return {**machine.facts("fusewire", "ctranslate2"), "threads": kernels.num_threads()}
    from benchmarks.gpu.facts import where

    return where("fusewire")


if __name__ == "__main__":
    main()

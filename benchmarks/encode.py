"""Texts to embeddings, compared with sentence-transformers: `python -m benchmarks.encode`.

all-MiniLM-L6-v2 in fp32 on a CPU, with tokenisation, pooling and normalisation. The texts are runs
of words from the reference that comes with Python, 8 to 40 and 5 to 128 words long, in random order
and sorted by length. `Embedder.encode` and `SentenceTransformer.encode` run with their defaults;
both sort by length. Our embeddings are checked against the latter's. The systems take turns, each
in its own process.

Writes bench-results/encode.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median
from typing import Any

import numpy as np

from benchmarks import arena, machine, records
from benchmarks.encoder import minilm_folder
from benchmarks.machine import DISTURBED
from benchmarks.worker import Handler, Worker
from tests.tolerance import MODEL_FP32

WORDS = {"8 to 40 words": (8, 40), "5 to 128 words": (5, 128)}
ORDERS = ("unsorted", "sorted")
CASES = [f"{words}, {order}" for words in WORDS for order in ORDERS]
OURS, THEIRS = "fusewire", "sentence-transformers"

Encode = Callable[[list[str]], np.ndarray]


def fusewire(folder: Path, threads: int) -> Encode:
    from fusewire import Embedder

    embedder = Embedder(folder, device="cpu", threads=threads)
    return lambda texts: embedder.encode(texts, show_progress_bar=False)


def sentence_transformers(folder: Path, threads: int) -> Encode:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return lambda texts: model.encode(texts, show_progress_bar=False)


SYSTEMS: dict[str, Callable[[Path, int], Encode]] = {
    OURS: fusewire,
    THEIRS: sentence_transformers,
}


class System(Worker):
    """One system in its own process."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        super().__init__(name, _answering, name, folder, threads)

    def run(self, texts: list[str]) -> tuple[np.ndarray, float, float]:
        """Returns the embeddings, the seconds, and the share of the cores' time that other
        processes used meanwhile."""
        watch = machine.Watch(self.pid)
        embeddings, seconds = self.ask(texts)
        return embeddings, seconds, watch.disturbed()


def _answering(name: str, folder: Path, threads: int) -> Handler:
    encode = SYSTEMS[name](folder, threads)

    def answer(texts: list[str]) -> tuple[np.ndarray, float]:
        began = time.perf_counter()
        embeddings = encode(texts)
        return embeddings, time.perf_counter() - began

    return answer


def texts_of(case: str, count: int) -> list[str]:
    """Returns the texts of a case, the same in every run."""
    words, _, order = case.partition(", ")
    source = " ".join(topics[name] for name in sorted(topics)).split()
    rng = np.random.default_rng(0)
    least, most = WORDS[words]
    lengths = rng.integers(least, most + 1, count)
    starts = rng.integers(0, len(source) - most, count)
    found = [
        " ".join(source[start : start + length])
        for start, length in zip(starts, lengths, strict=True)
    ]
    return sorted(found, key=lambda text: len(text.split())) if order == "sorted" else found


def measure(systems: list[System], texts: list[str], rounds: int) -> list[dict[str, Any]]:
    """Returns one row per system. Raises SystemExit where an embedding differs. The first turn
    warms up."""
    warm = {system.name: system.run(texts)[0] for system in systems}
    differences = {name: float(np.abs(it - warm[THEIRS]).max()) for name, it in warm.items()}
    for name, difference in differences.items():
        if not difference <= MODEL_FP32:
            raise SystemExit(f"{name}: off by {difference}, wanted at most {MODEL_FP32}")
    seconds: dict[str, list[float]] = {system.name: [] for system in systems}
    disturbed = 0.0
    for turn in range(rounds):
        at = turn % len(systems)
        for system in systems[at:] + systems[:at]:
            _, taken, others = system.run(texts)
            seconds[system.name].append(taken)
            disturbed = max(disturbed, others)
    return [
        {
            "system": name,
            "texts": len(texts),
            "rounds": rounds,
            "median_s": round(median(taken), 4),
            "texts_per_s": round(len(texts) / median(taken), 1),
            "times_sentence_transformers": round(
                median(a / b for a, b in zip(seconds[THEIRS], taken, strict=True)), 3
            ),
            "max_abs_difference": differences[name],
            "disturbed": disturbed,
        }
        for name, taken in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system")
    parser.add_argument("--texts", type=int, default=512, help="of each case")
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES, metavar="CASE")
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    if importlib.util.find_spec("sentence_transformers") is None:
        raise SystemExit(
            f"{THEIRS}: not installed, it is what this compares with; pip install {THEIRS}"
        )
    arena.pin(options.threads)
    folder = minilm_folder()
    facts = machine.facts(OURS, THEIRS, "transformers", "torch")
    with contextlib.ExitStack() as stack:
        systems = [stack.enter_context(System(n, folder, options.threads)) for n in SYSTEMS]
        for case in options.cases:
            rows = [
                {**facts, "benchmark": "encode", "model": "MiniLM-L6", "case": case}
                | {"dtype": "float32", "threads": options.threads, **row}
                for row in measure(systems, texts_of(case, options.texts), options.rounds)
            ]
            records.append(options.out / "encode.jsonl", rows)
            speeds = ", ".join(f"{row['system']} {row['texts_per_s']:.0f}" for row in rows)
            print(f"{case}, texts/s: {speeds}", flush=True)
            if rows[0]["disturbed"] > DISTURBED:
                print(f"  NOT QUOTABLE: other work took up to {rows[0]['disturbed']:.0%}")
    print(f"rows added to {options.out / 'encode.jsonl'}")


if __name__ == "__main__":
    main()

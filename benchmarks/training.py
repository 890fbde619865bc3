"""Speed of training on a CPU, compared with transformers on torch: `python -m benchmarks.training`.

Steps of fine-tuning BERT-base as a classifier (8 and 32 texts of 8 to 128 tokens, mean 45) and of
training a small GPT (8 rows of 128 tokens), random weights, fp32, dropout 0.1: forward, loss,
backward, clipping and AdamW (torch's is the fused one). Rivals are transformers' models without and
with torch.compile. Systems first run the same steps without dropout and must have the same losses,
then take turns, so that noise of the machine affects all of them equally. Compared are medians of
seconds, and minima of CPU seconds, which other processes disturb less.

Adds rows to bench-results/training.jsonl (one JSON object each). `--device cuda` measures on a GPU
(`benchmarks/training_gpu.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import arena, machine, records, training_report
from benchmarks.machine import DISTURBED
from benchmarks.seq2seq import Turn, measure, rows_of_case
from benchmarks.training_report import BENCHMARK, OURS
from benchmarks.training_rivals import (
    SHAPES,
    SYSTEMS,
    Asked,
    batch_of,
    counted,
    stepping,
    token_mask,
)
from benchmarks.worker import Worker
from tests.tolerance import TRAINED_VERSUS_EAGER

CASES = {"BERT-base": (8, 32), "GPT, 4 layers of 256": (8,)}
BATCHES = 4  # used in turn, as lengths differ


class System(Worker):
    """One system in its own process."""

    def __init__(self, name: str, shape: str, threads: int) -> None:
        super().__init__(name, stepping, name, shape, threads)

    def losses(self, batches: list[dict[str, np.ndarray]]) -> list[float]:
        return self.ask(Asked(batches, dropout=False, runs=0))

    def time(self, batches: list[dict[str, np.ndarray]], runs: int) -> Turn:
        """Times `runs` runs after one warm-up."""
        worked: list[float] = []

        def ask() -> tuple[list[float], float]:
            seconds, worked[:], own = self.ask(Asked(batches, dropout=True, runs=runs))
            return seconds, own

        turn = arena.timed(ask)
        return Turn(turn.seconds, turn.disturbed, worked)


def check(systems: Sequence[System], shape: str) -> None:
    """Raises SystemExit where a system has other losses than transformers, on new batches."""
    seed = time.time_ns() % 2**32
    rng = np.random.default_rng(seed)
    batches = [batch_of(shape, 3, rng) for _ in range(3)]
    found = {system.name: np.array(system.losses(batches)) for system in systems}
    wanted = found["transformers"]
    for name, losses in found.items():
        off = float(np.abs(losses / wanted - 1).max())
        print(f"  {shape}, seed {seed}: losses of {name} are off by {off:.1e}", flush=True)
        if not off <= TRAINED_VERSUS_EAGER:
            raise SystemExit(f"{name}: got losses {losses}, wanted {wanted}, as transformers has")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each system")
    parser.add_argument("--runs", type=int, default=BATCHES, help="timed steps of a turn")
    parser.add_argument(
        "--models", nargs="+", choices=list(SHAPES), help="by default those of docs"
    )
    parser.add_argument(
        "--texts", type=int, nargs="+", help="of a batch; target tokens of a translator"
    )
    parser.add_argument("--systems", nargs="+", help="by default all")
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    if options.device == "cuda":
        from benchmarks import training_gpu

        models = options.models or list(training_gpu.CASES)
        systems = options.systems or training_gpu.SYSTEMS
        training_gpu.run(models, options.texts, systems, options.rounds, options.out)
        return
    names = list(dict.fromkeys([OURS, "transformers", *(options.systems or SYSTEMS)]))
    arena.pin(options.threads)
    found: records.Rows = []
    for model in options.models or CASES:
        with contextlib.ExitStack() as stack:
            systems = [stack.enter_context(System(n, model, options.threads)) for n in names]
            check(systems, model)
            for texts in options.texts or CASES.get(model, (8,)):
                rng = np.random.default_rng(1)
                batches = [batch_of(model, texts, rng) for _ in range(BATCHES)]
                masks = [token_mask(each) for each in batches]
                tokens = round(np.mean([mask.sum() for mask in masks]))
                turns = measure(systems, batches, options.rounds, options.runs)
                facts = {
                    "benchmark": BENCHMARK,
                    "model": model,
                    "case": f"{texts} {counted(model)}",
                    "threads": options.threads,
                    "texts": texts,
                    "tokens": tokens,
                    "padded_tokens": round(np.mean([mask.size for mask in masks])),
                    **machine.facts("fusewire", "torch", "transformers"),
                }
                rows = rows_of_case(turns, tokens, facts)
                found += rows
                records.append(options.out / "training.jsonl", rows)
    print(training_report.table(found))
    worst = max(row["disturbed"] for row in found)
    if worst > DISTURBED:
        print(f"others took up to {worst:.0%} of the cores' time: run it again on a quiet machine")


if __name__ == "__main__":
    main()

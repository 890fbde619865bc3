"""What weights in fewer bits save on a CPU: `python -m benchmarks.weight_formats`.

Our encoders with the same weights in float32, bfloat16 and int8, which take turns in one process:
all-MiniLM-L6-v2 and BERT-base's shape (random weights), on the cases of `benchmarks.encoder`. A row
has the median and the least time of a case in a format, how many times faster than in float32 it is
by both, and the cosines of its hidden states to those in float32.

Writes bench-results/weight_formats.jsonl, one JSON object a row.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from fusewire import kernels
from fusewire.batch import Batch
from fusewire.models import EncoderModel, load_model
from fusewire.placement import Placement

from benchmarks import arena, machine, random_bert, records
from benchmarks.encoder import LENGTHS, MIXED, lengths_of, minilm_folder, sequences_of
from benchmarks.rivals import batch_of
from benchmarks.weight_formats_report import BENCHMARK, EXACT

# Dtype and quantisation of a Placement.
FORMATS = {
    EXACT: ("float32", "none"),
    "bfloat16": ("bfloat16", "none"),
    "int8": ("float32", "int8"),
}
MODELS = ("MiniLM-L6", "BERT-base")


def folder_of(model: str, work: Path) -> Path:
    if model == "MiniLM-L6":
        return minilm_folder()
    folder = work / model
    random_bert.write(folder, model)
    return folder


def hidden_states(model: EncoderModel, batch: Batch) -> np.ndarray:
    return model.place.numpy(model.encode(batch))


def times_of(
    models: dict[str, EncoderModel], batch: Batch, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Seconds of each call in each format; the first of a turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            hidden_states(model, batch)
            end = time.perf_counter() + seconds
            while not times[name] or time.perf_counter() < end:
                began = time.perf_counter()
                hidden_states(model, batch)
                times[name].append(time.perf_counter() - began)
    return times


def cosines(ours: np.ndarray, exact: np.ndarray) -> np.ndarray:
    products: np.ndarray = (ours * exact).sum(1)
    return products / np.linalg.norm(ours, axis=1) / np.linalg.norm(exact, axis=1)


def measured(
    models: dict[str, EncoderModel], case: str, options: argparse.Namespace
) -> list[records.Row]:
    rng = np.random.default_rng(0)
    sequences = sequences_of(lengths_of(case), random_bert.VOCABULARY, rng)
    batch = batch_of(sequences)
    exact = hidden_states(models[EXACT], batch)
    times = times_of(models, batch, options.rounds, options.seconds)
    rows = []
    for name, taken in times.items():
        near = cosines(hidden_states(models[name], batch), exact)
        rows.append(
            {
                "case": f"{case}, {name}",
                "input": case,
                "system": name,
                "ms": round(median(taken) * 1e3, 3),
                "least_ms": round(min(taken) * 1e3, 3),
                "times_float32": round(median(times[EXACT]) / median(taken), 2),
                "times_float32_least": round(min(times[EXACT]) / min(taken), 2),
                "mean_cosine": round(float(near.mean()), 6),
                "least_cosine": round(float(near.min()), 6),
            }
        )
    return rows


def line(row: records.Row) -> str:
    return (
        f"  {row['case']:20} {row['ms']:9.2f} ms (least {row['least_ms']:9.2f})"
        f"   {row['times_float32']:5.2f} x float32 (least {row['times_float32_least']:5.2f})"
        f"   cosine {row['mean_cosine']:.5f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6, help="turns of each format")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one turn")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    arena.pin(options.threads)
    kernels.set_num_threads(options.threads)
    facts = machine.facts("fusewire", "numpy") | {"target": kernels.cpu_target()}
    print(f"{facts['cpu']}, {facts['target']}, load average {facts['load_average']}")
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for name in options.models:
            folder = folder_of(name, Path(work))
            models = {
                each: load_model(folder, "hidden", Placement("cpu", *precision))
                for each, precision in FORMATS.items()
            }
            print(name)
            for case in (*LENGTHS, MIXED):
                watch = machine.Watch()
                found = measured(models, case, options)
                run = {"threads": options.threads, "disturbed": watch.disturbed()}
                for row in found:
                    rows.append(facts | {"benchmark": BENCHMARK, "model": name} | row | run)
                    print(line(rows[-1]), flush=True)
    worst = max(row["disturbed"] for row in rows)
    if worst > machine.DISTURBED:
        print(f"others took up to {worst:.0%} of the cores' time: run it again on a quiet machine")
    records.append(options.out / "weight_formats.jsonl", rows)


if __name__ == "__main__":
    main()

"""The savings of weights in fewer bits on a CPU: `python -m benchmarks.weight_formats`.

Ours in float32, bfloat16 and int8, compared with others' int8. Encoders: all-MiniLM-L6-v2 and
BERT-base's shape (random weights), on the cases of `benchmarks.encoder`, and on single sequences of
new lengths, whose first call is compared with the second. GPT-2 124M (random weights): steps of one
sequence and of eight. Each system has its own process; the outputs of all for new random input are
checked first, and then they take turns. A row has the median and the minimum time of a case, how
many times faster than our float32 it is by the median, and how close the outputs are to those in
float32: cosines of hidden states, or the share of equal greedy tokens.

Writes bench-results/weight_formats.jsonl, one JSON object per row. With `--device cuda`: fp8, int8
and 4 bits compared with fp16 on a GPU (benchmarks/gpu/weight_formats.py).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import arena, machine, records, rivals, rivals_int8, weight_formats_decode
from benchmarks.encoder import LENGTHS, MIXED, lengths_of, measure, minilm_folder, sequences_of
from benchmarks.rivals_int8 import EXACT, PACKAGES
from benchmarks.weight_formats_report import BENCHMARK, NEW_LENGTH, table
from tests.tolerance import MODEL_FP32

ENCODERS = ("MiniLM-L6", "BERT-base")
MODELS = (*ENCODERS, weight_formats_decode.MODEL)
# Mean cosine to float32. A system below it computes something else, and is not timed.
LEAST_COSINE = 0.95
GPU_PARTS = ("products", "base", "large", "llama-8b")
_CHECKED = [512, 3, 77, 1, 128]  # lengths whose outputs are compared
_NEW = (23, 57, 91, 203, 301)  # lengths that no case has


def installed(names: Sequence[str]) -> list[str]:
    """Returns the systems whose packages are installed; prints which are not."""
    found = []
    for name in names:
        missing = [each for each in PACKAGES.get(name, ()) if not importlib.util.find_spec(each)]
        if missing:
            print(f"{name}: left out, not installed; pip install {' '.join(missing)}")
        else:
            found.append(name)
    return found


def folder_of(model: str, work: Path) -> Path:
    if model == "MiniLM-L6":
        return minilm_folder()
    folder = work / model
    rivals.write_bert_base(folder)
    return folder


def cosines(ours: np.ndarray, exact: np.ndarray) -> np.ndarray:
    products: np.ndarray = (ours * exact).sum(1)
    return products / np.linalg.norm(ours, axis=1) / np.linalg.norm(exact, axis=1)


def checked(
    systems: list[arena.System], folder: Path, threads: int
) -> tuple[list[arena.System], dict[str, np.ndarray]]:
    """Returns the systems whose outputs are correct, and the cosines of each one's tokens to
    transformers'. Raises SystemExit where one of ours is wrong."""
    seed = time.time_ns() % 2**32
    sequences = sequences_of(_CHECKED, rivals.vocabulary(folder), np.random.default_rng(seed))
    with arena.System("transformers", folder, threads) as reference:
        wanted = reference.run(sequences)
    near, right = {}, []
    for system in systems:
        answer = system.run(sequences)
        near[system.name] = cosines(answer, wanted)
        mean = float(near[system.name].mean())
        exact = system.name != EXACT or np.abs(answer - wanted).max() <= MODEL_FP32
        if mean >= LEAST_COSINE and exact:
            right.append(system)
        elif system.name.startswith("fusewire"):
            raise SystemExit(
                f"{system.name}: got a mean cosine of {mean} to transformers, seed {seed}, wanted "
                f"at least {LEAST_COSINE}, and in float32 no difference above {MODEL_FP32}"
            )
        else:
            print(f"{system.name}: left out, mean cosine {mean:.4f}, seed {seed}")
    return right, near


def row_of(case: str, times: dict[str, list[float]], name: str) -> records.Row:
    taken = times[name]
    return {
        "case": f"{case}, {name}",
        "input": case,
        "system": name,
        "ms": round(median(taken) * 1e3, 3),
        "least_ms": round(min(taken) * 1e3, 3),
        "times_float32": round(median(times[EXACT]) / median(taken), 2),
    }


def first_calls(systems: list[arena.System], vocabulary: int) -> list[records.Row]:
    """Returns medians over lengths that are new to every system: of second calls, and as `first_ms`
    of first calls."""
    rng = np.random.default_rng(2)
    given = [sequences_of([length], vocabulary, rng) for length in _NEW]
    first: dict[str, list[float]] = {system.name: [] for system in systems}
    second: dict[str, list[float]] = {system.name: [] for system in systems}
    for sequences in given:
        for system in systems:
            for times, seconds in zip((first, second), system.first_two(sequences), strict=True):
                times[system.name].append(seconds)
    return [
        row_of(NEW_LENGTH, second, name) | {"first_ms": round(median(first[name]) * 1e3, 3)}
        for name in first
    ]


def encoder_rows(folder: Path, names: list[str], options: argparse.Namespace) -> list[records.Row]:
    vocabulary = rivals.vocabulary(folder)
    rows: list[records.Row] = []
    with contextlib.ExitStack() as stack:
        systems = [
            stack.enter_context(arena.System(name, folder, options.threads)) for name in names
        ]
        systems, near = checked(systems, folder, options.threads)
        for case in (*LENGTHS, MIXED):
            sequences = sequences_of(lengths_of(case), vocabulary, np.random.default_rng(1))
            turns = measure(systems, sequences, options.rounds, options.seconds, options.again)
            times = {name: [s for turn in own for s in turn.seconds] for name, own in turns.items()}
            disturbed = {name: max(t.disturbed for t in own) for name, own in turns.items()}
            rows += [
                row_of(case, times, name) | {"disturbed": round(disturbed[name], 3)}
                for name in times
            ]
        watch = machine.Watch(*(system.pid for system in systems))
        new = first_calls(systems, vocabulary)
        rows += [row | {"disturbed": watch.disturbed()} for row in new]
        for row in rows:
            row["mean_cosine"] = round(float(near[row["system"]].mean()), 6)
            row["least_cosine"] = round(float(near[row["system"]].min()), 6)
    return rows


def on_gpu(options: argparse.Namespace) -> None:
    import torch

    from benchmarks.gpu import facts, weight_formats, weight_formats_report

    torch.set_grad_enabled(False)
    here, rows = facts.facts(), []
    for new in weight_formats.run(options, here):
        records.append(options.out / f"{weight_formats_report.BENCHMARK}.jsonl", new)
        rows += new
        print(weight_formats_report.table(new).splitlines()[-1], flush=True)
    print(f"{here['gpu']}\n{weight_formats_report.table(rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each system")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of one turn")
    parser.add_argument("--again", type=int, default=2, help="repeats of a disturbed turn")
    parser.add_argument("--new-tokens", type=int, default=32, help="of a sequence of GPT-2")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--parts", nargs="+", default=list(GPU_PARTS), choices=GPU_PARTS)
    parser.add_argument("--compiled", action="store_true", help="torch.compile beside, on a GPU")
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    if options.device == "cuda":
        return on_gpu(options)
    arena.pin(options.threads)
    packages = ("fusewire", "numpy", "ctranslate2", "onnxruntime", "openvino")
    found: dict[str, Any] = machine.facts(*(p for p in packages if importlib.util.find_spec(p)))
    facts = found | {"benchmark": BENCHMARK, "threads": options.threads}
    print(f"{facts['cpu']}, load average {facts['load_average']}", flush=True)
    names = installed(list(rivals_int8.SYSTEMS))
    rows = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as work:
            if model == weight_formats_decode.MODEL:
                decoders = installed(weight_formats_decode.SYSTEMS)
                new = weight_formats_decode.rows(Path(work), decoders, options)
            else:
                new = encoder_rows(folder_of(model, Path(work)), names, options)
        new = [facts | {"model": model} | row for row in new]
        records.append(options.out / "weight_formats.jsonl", new)
        rows += new
    print(table(rows))
    worst = max(row["disturbed"] for row in rows)
    if worst > machine.DISTURBED:
        print(f"others took up to {worst:.0%} of the cores' time: run it again on a quiet machine")


if __name__ == "__main__":
    main()

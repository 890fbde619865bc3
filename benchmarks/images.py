"""Speed of image classifiers, compared with other engines: `python -m benchmarks.images`.

Shapes of ViT-B/16 and ViT-L/14 at 224 x 224 with random weights, batches of 1, 8, 32 and 256; from
pixel values on the host to logits on the host, fp32 on the CPU and fp16 on a GPU (`--device cuda`).
The outputs of every system for new random input must be within tolerance; then they take turns, and
medians are compared.

Adds rows to bench-results/images.jsonl (one JSON object each).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from benchmarks import arena, image_rivals, machine, records
from benchmarks.encoder import measure
from benchmarks.worker import Handler, Worker
from tests.tolerance import MODEL_FP32

SIDE = 224
MODELS: dict[str, dict[str, int]] = {
    "ViT-B/16": {"patch_size": 16},
    "ViT-L/14": {
        "patch_size": 14,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}
# In fp16: the allowed difference, as a multiple of that of torch in fp16.
TIMES_TORCH = 2.0
PACKAGES = {"torch-eager": "torch", "torch-compiled": "torch", "openvino-async": "openvino"}


class System(Worker):
    """One system in its own process."""

    def __init__(self, name: str, start: Callable[..., Any], *arguments: Any) -> None:
        super().__init__(name, _answering, start, arguments)

    def run(self, pixels: np.ndarray) -> np.ndarray:
        """Returns the logits, [images, labels]."""
        return self.ask((pixels, None))

    def time(self, pixels: Any, seconds: float) -> arena.Turn:
        return arena.timed(lambda: self.ask((pixels, seconds)))


def _answering(start: Callable[..., Any], arguments: tuple[Any, ...]) -> Handler:
    run = start(*arguments)

    def answer(question: tuple[np.ndarray, float | None]) -> Any:
        pixels, seconds = question
        if seconds is None:
            return run(pixels)
        begin = time.process_time()  # CPU time of all threads
        return arena.times(run, pixels, seconds), time.process_time() - begin

    return answer


def pixels_of(images: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((images, 3, SIDE, SIDE), np.float32)


def differences(systems: list[System], wanted: np.ndarray, pixels: np.ndarray) -> dict[str, float]:
    """Returns each system's maximum absolute difference from transformers in fp32. Raises
    SystemExit where it is too large."""
    found = {system.name: float(np.abs(system.run(pixels) - wanted).max()) for system in systems}
    print("  max |difference| from transformers in fp32:")
    for name, difference in found.items():
        print(f"    {name:14} {difference:.1e}", flush=True)
    return found


def rows_of_case(turns: dict[str, list[arena.Turn]], images: int, facts: records.Row) -> Any:
    times = {name: [s for turn in own for s in turn.seconds] for name, own in turns.items()}
    medians = {name: median(values) for name, values in times.items()}
    best, rival = min((s, name) for name, s in medians.items() if name != "fusewire")
    for name, values in times.items():
        tenths = quantiles(values, n=10) if len(values) > 1 else [values[0]] * 9
        yield {
            **facts,
            "system": name,
            "version": machine.version_of(PACKAGES.get(name, name)),
            "median_ms": round(medians[name] * 1e3, 3),
            "p10_ms": round(tenths[0] * 1e3, 3),
            "p90_ms": round(tenths[-1] * 1e3, 3),
            "runs": len(values),
            "disturbed": round(max(turn.disturbed for turn in turns[name]), 3),
            "images_per_s": round(images / medians[name], 1),
            "best_rival": rival,
            "times_best_rival": round(best / medians[name], 3),
        }


def bench_model(name: str, folder: Path, options: argparse.Namespace) -> records.Rows:
    rows: records.Rows = []
    print(f"{name}: loading {', '.join(options.systems)}", flush=True)
    pixels = pixels_of(2, time.time_ns() % 2**32)
    with System("exact", image_rivals.exact, folder, options.threads) as exact:
        wanted = exact.run(pixels)
    with contextlib.ExitStack() as stack:
        given = folder, options.device, options.threads
        systems = [
            stack.enter_context(System(each, image_rivals.SYSTEMS[each], *given))
            for each in options.systems
        ]
        off = differences(systems, wanted, pixels)
        allowed = MODEL_FP32 if options.device == "cpu" else TIMES_TORCH * off["torch-eager"]
        if wrong := [each for each in off if not off[each] <= allowed]:
            raise SystemExit(f"{', '.join(wrong)}: off by more than {allowed:.1e}")
        for images in options.batches:
            print(f"  {images} images", end=" ", flush=True)
            turns = measure(
                systems, pixels_of(images, 1), options.rounds, options.seconds, options.again
            )
            facts = {
                "benchmark": "images",
                "model": name,
                "case": str(images),
                "dtype": "float32" if options.device == "cpu" else "float16",
                "threads": options.threads,
            }
            new = list(rows_of_case(turns, images, facts))
            for row in new:
                row["max_abs_difference"] = off[row["system"]]
            rows += new
            print(", ".join(f"{row['system']} {row['median_ms']:.1f} ms" for row in new))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one turn")
    parser.add_argument("--again", type=int, default=2, help="repeats of a disturbed turn")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 256])
    parser.add_argument("--systems", nargs="+", choices=list(image_rivals.SYSTEMS))
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    if options.systems is None:
        there = {name: importlib.util.find_spec(name) for name in ("onnxruntime", "openvino")}
        for name in (name for name, spec in there.items() if spec is None):
            print(f"{name}: not installed, left out; pip install {name}")
        here = image_rivals.ON_GPU if options.device == "cuda" else list(image_rivals.SYSTEMS)
        options.systems = [name for name in here if there.get(PACKAGES.get(name, name), True)]
    if not {"fusewire", "torch-eager"} <= set(options.systems):
        raise SystemExit("systems: wanted fusewire and torch-eager among them")
    arena.pin(options.threads)
    facts = machine.facts("torch", "transformers")
    if options.device == "cuda":
        import torch

        facts["gpu"] = torch.cuda.get_device_name()
    for name in options.models:
        with tempfile.TemporaryDirectory() as work:
            image_rivals.write_vit(Path(work), **MODELS[name])
            rows = bench_model(name, Path(work), options)
        records.append(options.out / "images.jsonl", [{**row, **facts} for row in rows])
        worst = max(row["disturbed"] for row in rows)
        if worst > machine.DISTURBED:
            print(f"NOT QUOTABLE: other work took up to {worst:.0%} of the cores; run it again")
    print(f"rows added to {options.out / 'images.jsonl'}")


if __name__ == "__main__":
    main()

"""The overhead of a server in generation.

    python -m benchmarks.generation_served [--device cuda --model llama-8b]

The same prompts of token ids are sent to the engine in a process and then to Triton, which serves
the same folder: through our client over gRPC, and through the OpenAI endpoint. They are streams
that begin together, greedy, with a fixed number of new tokens each. The time between tokens is that
from a stream's first to its last response, divided by its tokens, the median over the streams (a
slow reader gets several tokens in one response); tokens/s are all tokens over the time from the
common start to the last of them. Each reader process reads some of the streams.

Writes bench-results/generation_served.jsonl, those of a GPU bench-results/gpu.jsonl, one JSON
object per row.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.generation.request import GenerationRequest

from benchmarks import machine, records
from benchmarks.generation_poisson import MODELS
from benchmarks.generation_streams import (
    NAME,
    WAYS,
    Times,
    by_server,
    readers,
    row_of,
    sampling,
)
from benchmarks.gpu import facts as gpu
from benchmarks.gpu.generation_models import (
    Place,
    random_ids,
    tokenizer_folder,
    transformers_model,
)
from benchmarks.gpu.generation_workload import Shape
from tests.load.server import served

FILE = "generation_served.jsonl"
PACKAGES = ("fusewire", "torch", "nvidia-pytriton", "tritonclient", "fastapi", "uvicorn")


def folder_of(root: Path, shape: Shape, place: Place) -> Path:
    """Writes a checkpoint of random weights with its tokenizer and returns its folder."""
    tokenizer_folder(root, shape.vocabulary)  # before the model, whose config.json must remain
    transformers_model(shape, place).save_pretrained(root)
    return root


def by_engine(
    folder: Path, settings: dict[str, Any], device: str, loads: list[list[list[int]]], tokens: int
) -> list[tuple[float, Times]]:
    """Returns, for each load of prompts, when it began and the times of its streams."""
    found = []
    with GenerationEngine(folder, GenerationSettings(**settings), device) as engine:
        machine.settle()
        asked = engine.parameters(**sampling(tokens))
        for prompts in loads:
            events: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
            began, times = time.perf_counter(), {}
            for index, prompt in enumerate(prompts):
                request = GenerationRequest(prompt, asked)
                engine.submit(
                    request, None, lambda event, index=index, put=events.put: put((index, event))
                )
            left = len(prompts)
            while left:
                index, delta = events.get()
                now = time.perf_counter()
                times[index] = (times.get(index, (now, now))[0], now)
                left -= delta.finish_reason is not None
            found.append((began, list(times.values())))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=list(MODELS), default="small")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--tokens", type=int, default=128, help="new ones of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    shape, place = MODELS[options.model], Place(options.device, "float32" if on_cpu else "float16")
    most = max(options.streams)
    settings = {
        "dtype": place.dtype,
        "max_sequences": most,
        "max_length": options.prompt + options.tokens,
        "prefix_caching": False,
    }
    flags = [f"--device={options.device}", f"--dtype={place.dtype}", "--no-prefix-caching"]
    flags += [f"--max-sequences={most}", f"--max-length={settings['max_length']}"]
    flags += ["--openai-port=0"]
    loads = [
        [random_ids(shape, options.prompt, seed=1000 * turn + index) for index in range(streams)]
        for streams in options.streams
        for turn in range(options.rounds + 1)  # the first round warms up
    ]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as root:
        # Each in a process of its own, so that the device's memory is freed.
        with ProcessPoolExecutor(1, context) as pool:
            folder = pool.submit(folder_of, Path(root), shape, place).result()
            facts = pool.submit(machine.facts if on_cpu else gpu.where, *PACKAGES).result()
        with ProcessPoolExecutor(1, context) as pool:
            asked = (folder, settings, options.device, loads, options.tokens)
            engine = pool.submit(by_engine, *asked).result()
        seen = {"engine": engine}
        with served(folder, NAME, *flags) as at, readers() as reading:
            for way in WAYS:
                seen[way] = [
                    by_server(reading, way, at, prompts, options.tokens) for prompts in loads
                ]
    facts |= {"prompt": options.prompt, "tokens": options.tokens, "dtype": place.dtype}
    rows = _rows(options, shape, facts, seen)
    records.append(options.out or (records.RESULTS / FILE if on_cpu else records.GPU_RESULTS), rows)


def _rows(
    options: argparse.Namespace,
    shape: Shape,
    facts: dict[str, Any],
    seen: dict[str, list[tuple[float, Times]]],
) -> list[dict[str, Any]]:
    rows = []
    for number, streams in enumerate(options.streams):
        first = number * (options.rounds + 1) + 1
        row = {**facts, "benchmark": "generation_served", "system": "fusewire"}
        row |= {"model": shape.name, "streams": streams}
        row["case"] = f"{streams} stream{'s' if streams > 1 else ''}"
        for name, runs in seen.items():
            turns = [row_of(*run, options.tokens) for run in runs[first : first + options.rounds]]
            row |= {f"{name}_{key}": median(turn[key] for turn in turns) for key in turns[0]}
        row["added_between_ms"] = round(row["server_between_ms"] - row["engine_between_ms"], 4)
        rows.append(row)
        print({key: row[key] for key in row if key not in facts}, flush=True)
    return rows


if __name__ == "__main__":
    main()

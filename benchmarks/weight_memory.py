"""Memory of a model in service by the format of its weights: `python -m benchmarks.weight_memory`.

Each format in its own process. Counted is what the process takes beyond what it had with the
library loaded (its share of every page, also of weights that are read in place in their file),
after a batch: 8 texts of 128 tokens, or as many prompts with a KV cache for them. `--device cuda`:
what the library's allocator took from the GPU, in float16 and with `fp8` and `int8` weights. Random
weights.

Writes bench-results/weight_memory.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import generation_rivals, machine, records, rivals
from benchmarks.memory import MIB, alone
from benchmarks.weight_memory_report import BENCHMARK, ON_GPUS, table

# By device: name -> arguments of a Placement.
FORMATS: dict[str, dict[str, dict[str, str]]] = {
    "cpu": {
        "float32": {},
        "bfloat16": {"dtype": "bfloat16"},
        "int8": {"quantize": "int8"},
    },
    "cuda": {
        "float16": {},
        "fp8": {"quantize": "fp8"},
        "int8": {"quantize": "int8"},
    },
}
TEXTS, LENGTH = 8, 128
Serve = Callable[[Path, Any], Any]  # (folder, placement) -> what holds the model's memory


def share_of_memory() -> int:
    """Bytes of this process: pages that n processes have count as 1 / n of their size."""
    found = re.search(r"^Pss: +(\d+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.M)
    assert found is not None
    return int(found[1]) << 10


def taken_mib(folder: Path, serve: Serve, device: str, precision: dict[str, str]) -> float:
    from fusewire import kernels, models  # noqa: F401 - loaded before memory is measured
    from fusewire.engine import generation_memory  # noqa: F401
    from fusewire.placement import Placement

    place = Placement(device, **precision)
    place.empty(1)
    allocator = kernels.default_allocator(place.device)

    def taken() -> int:
        return share_of_memory() if device == "cpu" else int(allocator.stats()["reserved_bytes"])

    before = taken()
    kept = serve(folder, place)
    found = (taken() - before) / MIB
    del kept
    return found


def encode(folder: Path, place: Any) -> Any:
    from fusewire.batch import Batch, Sequence
    from fusewire.models import load_model

    model = load_model(folder, "hidden", place)
    ids = np.arange(LENGTH, dtype=np.int64)
    model.encode(Batch.pack([Sequence(ids, np.zeros(LENGTH, np.int32))] * TEXTS))
    place.stream.synchronize()
    return model


def decode(folder: Path, place: Any) -> Any:
    from fusewire.engine.generation_memory import PAGE_SIZE
    from fusewire.models import load_decoder
    from fusewire.models.step_batch import StepBatch

    model = load_decoder(folder, place)
    pages = np.arange(TEXTS * LENGTH // PAGE_SIZE, dtype=np.int32).reshape(TEXTS, -1)
    cache = model.new_cache(pages.size, PAGE_SIZE)
    offsets = np.arange(TEXTS + 1, dtype=np.int32) * LENGTH
    model.step(
        StepBatch(
            input_ids=np.arange(TEXTS * LENGTH, dtype=np.int64),
            positions=np.tile(np.arange(LENGTH, dtype=np.int32), TEXTS),
            cu_seqlens=offsets,
            context_lengths=np.full(TEXTS, LENGTH, np.int32),
            block_table=pages,
            logit_rows=offsets[1:].astype(np.int64) - 1,
        ),
        cache,
    )
    place.stream.synchronize()
    return model, cache


# Name -> what writes its folder, and what loads it and computes a batch.
MODELS: dict[str, tuple[Callable[[Path], Any], Serve]] = {
    "BERT-base": (rivals.write_bert_base, encode),
    "GPT-2 124M": (generation_rivals.write_gpt2, decode),
}


def facts_of(device: str) -> dict[str, Any]:
    if device == "cpu":
        return machine.facts("fusewire", "numpy")
    from benchmarks.gpu.facts import where

    return where("fusewire", "numpy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=list(FORMATS), default="cpu")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    name = BENCHMARK if options.device == "cpu" else ON_GPUS
    rows: records.Rows = []
    facts = facts_of(options.device) | {"benchmark": name}
    facts["threads"] = len(facts["cpus"])  # the library's default
    for model in options.models:
        write, serve = MODELS[model]
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work)
            write(folder)
            file_mib = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / MIB
            for system, precision in FORMATS[options.device].items():
                mib = alone(taken_mib, folder, serve, options.device, precision)
                row = {"model": model, "system": system, "taken_mib": round(mib, 1)}
                rows.append(facts | row | {"file_mib": round(file_mib, 1)})
    records.append(options.out / f"{name}.jsonl", rows)
    print(table(rows))


if __name__ == "__main__":
    main()

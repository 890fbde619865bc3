"""Device memory of BERT-base in service, fp16, compared with torch on the same traffic.

Each system runs in its own process; this one reads the device's free memory from the driver after
each stage: context (the driver's own), model, captured graphs, traffic, and after the model was
deleted: what then remains is the context with the code of the kernels and libraries that have run.
The traffic, twice: 150 single sequences of 5 to 500 tokens, 30 batches of 16 with 0.2 * 512 to 512.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fusewire.batch import Batch, Sequence

from benchmarks.gpu.workload import SIZES, VOCABULARY
from benchmarks.records import Rows
from benchmarks.worker import Worker

MIB = 1 << 20
STAGES = ("context", "model", "recordings", "traffic", "unloaded")
# A served model may use its weights, this many times its planned arena, and the context.
TIMES_ARENA = 1.1

Stage = Callable[[], dict[str, float]]


def traffic() -> list[Batch]:
    rng = np.random.default_rng(0)
    alone = [[n] for n in rng.integers(5, 501, 150)]
    together = [list(rng.integers(102, 513, 16)) for _ in range(30)]
    return [
        Batch.pack([Sequence(rng.integers(0, VOCABULARY, n), np.zeros(n, np.int32)) for n in each])
        for each in (*alone, *together)
    ]


def run(options: argparse.Namespace, facts: dict[str, Any]) -> Iterator[Rows]:
    from benchmarks.gpu import rivals

    with tempfile.TemporaryDirectory() as folder:
        model: Any = rivals.bert(SIZES["base"])
        model.save_pretrained(folder)
        del model
        torch.cuda.empty_cache()
        rows = [_row(name, setup, folder) for name, setup in SIDES.items()]
    yield [{**facts, "benchmark": "memory", "case": "BERT-base served", **row} for row in rows]


def _row(name: str, setup: Callable[[str], Callable[[str], Any]], folder: str) -> dict[str, Any]:
    row: dict[str, Any] = {"system": name, "dtype": "float16"}
    before = torch.cuda.mem_get_info()[0]
    with Worker(name, setup, folder) as worker:
        for stage in STAGES:
            row |= worker.ask(stage)
            row[f"{stage}_mib"] = round((before - torch.cuda.mem_get_info()[0]) / MIB, 1)
    row["beyond_context_mib"] = round(row["traffic_mib"] - row["unloaded_mib"], 1)
    if "planned_arena_mib" in row:
        allowed = row["weights_mib"] + TIMES_ARENA * row["planned_arena_mib"]
        row["allowed_mib"] = round(allowed, 1)
        row["over_allowed"] = round(row["beyond_context_mib"] / allowed, 3)
    return row


def fusewire(folder: str) -> Callable[[str], dict[str, float]]:
    from fusewire import kernels
    from fusewire.models import EncoderModel, load_model
    from fusewire.placement import Placement

    place = Placement("cuda", "float16")
    allocator = kernels.default_allocator(place.device)
    found: dict[str, EncoderModel] = {}

    def context() -> dict[str, float]:
        place.empty(1)
        place.stream.synchronize()
        return {}

    def model() -> dict[str, float]:
        found["model"] = load_model(Path(folder), "hidden", place)
        place.stream.synchronize()
        return {"weights_mib": _mib(allocator.stats()["allocated_bytes"])}

    def recordings() -> dict[str, float]:
        # As a server does, which knows the largest batch.
        found["model"].record_forwards(max(batch.tokens for batch in traffic()))
        place.stream.synchronize()
        return {}

    def answer_all() -> dict[str, float]:
        for batch in (*traffic(), *traffic()):
            found["model"].encode(batch)
        place.stream.synchronize()
        stats, workspace = allocator.stats(), found["model"].workspace_stats()
        replays = found["model"]._replays
        return {
            "recorded": 0 if replays is None else len(replays.recorded),
            "allocated_mib": _mib(stats["allocated_bytes"]),
            "reserved_mib": _mib(stats["reserved_bytes"]),
            "peak_reserved_mib": _mib(stats["peak_reserved_bytes"]),
            "arena_mib": _mib(workspace["arena_bytes"]),
            "planned_arena_mib": _mib(workspace["peak_bytes"]),
        }

    def unload() -> dict[str, float]:
        del found["model"]
        place.stream.synchronize()
        allocator.trim()
        return {"kept_mib": _mib(allocator.stats()["reserved_bytes"])}

    return _stages(context, model, recordings, answer_all, unload)


def torch_eager(folder: str) -> Callable[[str], dict[str, float]]:
    import transformers

    from benchmarks.gpu.rivals import Padded

    found: dict[str, Any] = {}
    torch.set_grad_enabled(False)

    def context() -> dict[str, float]:
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        return {}

    def model() -> dict[str, float]:
        loaded = transformers.BertModel.from_pretrained(
            folder, add_pooling_layer=False, dtype=torch.float16, attn_implementation="sdpa"
        )
        found["model"] = loaded.eval().cuda()
        torch.cuda.synchronize()
        return {"weights_mib": _mib(torch.cuda.memory_allocated())}

    def recordings() -> dict[str, float]:
        return {}

    def answer_all() -> dict[str, float]:
        for batch in (*traffic(), *traffic()):
            Padded(found["model"], batch).forward()
        torch.cuda.synchronize()
        return {
            "allocated_mib": _mib(torch.cuda.max_memory_allocated()),
            "reserved_mib": _mib(torch.cuda.memory_reserved()),
            "peak_reserved_mib": _mib(torch.cuda.max_memory_reserved()),
        }

    def unload() -> dict[str, float]:
        del found["model"]
        torch.cuda.empty_cache()
        return {}

    return _stages(context, model, recordings, answer_all, unload)


SIDES = {"fusewire": fusewire, "transformers": torch_eager}


def _stages(*stages: Stage) -> Callable[[str], dict[str, float]]:
    by_name = dict(zip(STAGES, stages, strict=True))
    return lambda name: by_name[name]()


def _mib(nbytes: float) -> float:
    return round(nbytes / MIB, 1)

"""Memory of a training step on a GPU, compared with transformers on torch:
`python -m benchmarks.training_memory --device cuda`.

The steps of `benchmarks.training --device cuda`, each system in its own process, with one batch,
the same for all. Counted is the most that the allocators of torch and fusewire hold of the device
from the first step on, each by itself: parameters, gradients, moments and activations, what they
keep for later, and what graphs need that are captured on the way. Not counted is what the driver
takes for code and contexts. The system that needs least has bf16 parameters and computes the
outputs of norms again.

Adds rows to bench-results/training_gpu_memory.jsonl (one JSON object each).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import records, training_report
from benchmarks.memory import alone
from benchmarks.training_gpu import LEAN, SYSTEMS, made, stepping, tokens_of
from benchmarks.training_rivals import counted

CASES = {
    "BERT-base": (256,),
    "Transformer-big, 6 + 6 layers": (15000,),
    "GPT-2 124M": (8,),
}
STEPS = 5  # the first few run eagerly, or are captured
GIB = 1 << 30


def peak_gib(system: str, shape: str, texts: int) -> float | None:
    """Returns None where the memory of the device is not enough."""
    import torch
    from fusewire import kernels

    batch = made(shape, texts)[0]
    allocator = kernels.default_allocator("cuda")
    try:
        _, step = stepping(system, shape)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # of what is left from making the model
        allocator.trim()
        allocator.reset_peaks()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(STEPS):
            step(batch)
        torch.cuda.synchronize()
    except (torch.OutOfMemoryError, kernels.OutOfMemory):
        return None
    of_torch = torch.cuda.max_memory_reserved()
    return (of_torch + allocator.stats()["peak_reserved_bytes"]) / GIB


def run(
    models: Sequence[str] | None, texts: int | None, systems: Sequence[str] | None, out: Path
) -> None:
    from benchmarks.gpu.facts import where

    rows = []
    facts = where("fusewire", "torch", "transformers")
    for shape in models or CASES:
        for count in (texts,) if texts else CASES.get(shape, (8,)):
            tokens, padded = tokens_of(made(shape, count)[:1])
            of_case = []
            for system in systems or (*SYSTEMS, LEAN):
                print(f"{shape}, {count}: {system}", flush=True)
                peak = alone(peak_gib, system, shape, count)
                if peak is None:
                    print(f"{shape}, {count}: {system} is left out: out of memory")
                    continue
                row = {
                    "benchmark": training_report.GPU_MEMORY,
                    "model": shape,
                    "case": f"{count} {counted(shape)}",
                    "system": system,
                    "tokens": tokens,
                    "padded_tokens": padded,
                    "peak_gib": round(peak, 3),
                }
                of_case.append({**row, **facts})
            records.append(out / f"{training_report.GPU_MEMORY}.jsonl", of_case)
            rows += of_case
    print(f"\n{training_report.gpu_memory_table(rows)}")

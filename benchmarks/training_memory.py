"""Memory of a training step by what is recomputed, compared with transformers on torch.

    python -m benchmarks.training_memory

The batches and models of `benchmarks.training`, fp32, dropout 0.1, each system in its own process,
in its second step of forward and backward, whose gradients are added to those of the first. Counted
is the peak of live memory beyond parameters and gradients:

- fusewire: the peak of its allocator during the step beyond what is kept between steps, plus the
  peak of torch (embeddings, head), though they need not occur at the same time. What is kept on
  CPUs is copies of weights in the layout of the kernels. The plan is of the layers: forward and
  backward, compared with the liveness bound, below which no placement of the same tensors can be.
- transformers: torch's peak, as its profiler counts it, without and with gradient checkpointing.

Writes bench-results/training_memory.jsonl, one JSON object per row. `--device cuda` measures steps
on a GPU (`benchmarks/training_gpu_memory.py`).
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import encoder_report, records, training_report
from benchmarks.memory import MIB, alone, live_bytes
from benchmarks.training_report import MEMORY, OURS
from benchmarks.training_rivals import SHAPES, batch_of, make, token_mask

CASES = {"BERT-base": 32, "GPT, 4 layers of 256": 8}
SYSTEMS = {
    **{f"{OURS}, recompute {mode}": mode for mode in ("none", "norm", "activation", "layer")},
    "transformers": "none",
    "transformers, checkpointing": "layer",
}


def measured(system: str, shape: str, texts: int, threads: int) -> dict[str, Any]:
    import torch
    from fusewire import kernels
    from fusewire.train import replace

    torch.set_num_threads(threads)
    kernels.set_num_threads(threads)
    model = make(shape).train()
    mode = SYSTEMS[system]
    if system.startswith(OURS):
        model = replace(model, recompute=mode)
    elif mode == "layer":
        model.gradient_checkpointing_enable()
    numbers = batch_of(shape, texts, np.random.default_rng(0))
    batch = {name: torch.from_numpy(value) for name, value in numbers.items()}

    def step() -> None:
        model(**batch).loss.backward()

    step()
    allocator = kernels.default_allocator()
    kept = allocator.stats()["allocated_bytes"]
    allocator.reset_peaks()
    of_torch = int(live_bytes(step).max())
    own = allocator.stats()["peak_allocated_bytes"] - kept
    row = {
        "tokens": int(token_mask(numbers).sum()),
        "padded_tokens": token_mask(numbers).size,
        "peak_mib": (own + of_torch) / MIB,
        "kept_mib": kept / MIB,
        "version": torch.__version__,
    }
    layers = [module.fusewire for module in model.modules() if hasattr(module, "fusewire")]
    if layers:
        (stats,) = (segment.stack.stats() for each in layers for segment in each.segments)
        row |= {
            "planned_mib": stats["peak_bytes"] / MIB,
            "bound_mib": stats["lower_bound_bytes"] / MIB,
            "worst_peak_over_bound": stats["worst_ratio"],
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--models", nargs="+", choices=list(SHAPES), help="by default those of docs"
    )
    parser.add_argument("--texts", type=int, help="of a batch, by default those of docs")
    parser.add_argument("--systems", nargs="+", help="by default all")
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    if options.device == "cuda":
        from benchmarks import training_gpu_memory

        training_gpu_memory.run(options.models, options.texts, options.systems, options.out)
        return
    systems = options.systems or list(SYSTEMS)
    if unknown := set(systems) - set(SYSTEMS):
        parser.error(
            f"--systems: got {', '.join(sorted(unknown))}, wanted of: {', '.join(SYSTEMS)}"
        )
    rows = []
    for shape in options.models or CASES:
        texts = options.texts or CASES.get(shape, 8)
        facts = {
            "benchmark": MEMORY,
            "model": shape,
            "case": f"batch {texts}",
            "dtype": "float32",
            "threads": options.threads,
            "cpu": encoder_report.cpu_name(),
            "python": platform.python_version(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        for system in systems:
            print(f"{shape}, {texts}: {system}", flush=True)
            found = alone(measured, system, shape, texts, options.threads)
            versions = {"torch": found.pop("version")}
            rows.append({**facts, "system": system, "versions": versions, **found})
    records.append(options.out / f"{MEMORY}.jsonl", rows)
    print(f"\n{training_report.memory_table(rows)}")
    print(f"rows added to {options.out / f'{MEMORY}.jsonl'}")


if __name__ == "__main__":
    main()

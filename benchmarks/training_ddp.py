"""Speed of training on several GPUs, compared with one, and with transformers on torch.

    python -m benchmarks.training_ddp

The steps of `benchmarks.training --device cuda` under bf16 autocast, by one process per GPU: whole
steps, whose Adam has a process group, and loops under DistributedDataParallel over NCCL, with
Adam's moments sharded where it is ours (torch's is the fused one, complete in each process). First
one process runs the steps alone, without either, while the others wait, then all do, in turns. Each
process has a batch of as many texts as the one alone has, of the same lengths, as from a sampler by
tokens: the comparison shows the cost of communication. The efficiency is the tokens/s of all
processes, over those of one times their number.

Adds rows to bench-results/training_ddp.jsonl (one JSON object each). `--device cpu` runs the same
over gloo in fp32, to try it out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine, records, training_report
from benchmarks.training_gpu import (
    EAGER,
    HALF,
    OURS,
    STEP,
    WARM_UPS,
    check,
    few,
    made,
    round_ms,
    stepping,
    tokens_of,
)
from benchmarks.training_report import DDP
from benchmarks.training_rivals import SHAPES, counted

CASES = {"BERT-base": (32, 128), "GPT-2 124M": (16,)}
SYSTEMS = (STEP, HALF, OURS, EAGER)


def run(options: argparse.Namespace) -> None:
    """Runs one of the processes."""
    import torch
    from torch import distributed

    rank = int(os.environ["LOCAL_RANK"])
    if options.device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    distributed.init_process_group("nccl" if options.device == "cuda" else "gloo")
    group, device = distributed.group.WORLD, options.device

    def slowest_ms(step: Callable[[Any], Any], batches: Sequence[Any]) -> float:
        distributed.barrier()
        ms = torch.tensor(round_ms(step, batches, device), device=device)
        distributed.all_reduce(ms, distributed.ReduceOp.MAX)
        return float(ms)

    def alone_ms(step: Callable[[Any], Any], batches: Sequence[Any]) -> float:
        distributed.barrier()
        ms = round_ms(step, batches, device) if rank == 0 else 0.0
        distributed.barrier()
        return ms

    for shape in options.models:
        together = {system: stepping(system, shape, device, group) for system in options.systems}
        alone = {system: stepping(system, shape, device) for system in options.systems}
        if rank == 0 and EAGER in options.systems:
            check(alone, few(shape, seed=0, device=device))
        for texts in options.texts or CASES.get(shape, (8,)):
            batches = made(shape, texts, device=device)
            ms: dict[tuple[str, bool], list[float]] = {}
            for turn in range(WARM_UPS + options.rounds):
                for system in options.systems:
                    one = alone_ms(alone[system][1], batches)
                    every = slowest_ms(together[system][1], batches)
                    if turn >= WARM_UPS:
                        ms.setdefault((system, True), []).append(one)
                        ms.setdefault((system, False), []).append(every)
            if rank == 0:
                found = _rows(options, shape, texts, batches, ms, distributed.get_world_size())
                records.append(options.out / f"{DDP}.jsonl", found)
                print(training_report.ddp_table(found), flush=True)
                for goal in training_report.ddp_goals(found):
                    print(f"{goal.what}: {goal.measured}, wanted {goal.wanted}", flush=True)
    distributed.destroy_process_group()


def _rows(
    options: argparse.Namespace,
    shape: str,
    texts: int,
    batches: Sequence[Any],
    ms: dict[tuple[str, bool], list[float]],
    processes: int,
) -> records.Rows:
    tokens, padded = tokens_of(batches)
    packages = "fusewire", "torch", "transformers"
    if options.device == "cuda":
        from benchmarks.gpu.facts import where

        facts = where(*packages)
    else:
        facts = machine.facts(*packages)
    found = []
    for system in options.systems:
        one, every = (median(ms[system, alone]) for alone in (True, False))
        found.append(
            {
                "benchmark": DDP,
                "model": shape,
                "case": f"{processes} processes, {texts} {counted(shape)} each",
                "system": system,
                "processes": processes,
                "texts": texts,
                "tokens": tokens,
                "padded_tokens": padded,
                "alone_ms": round(one, 3),
                "median_ms": round(every, 3),
                "tokens_per_s": round(1e3 * processes * tokens / every),
                "alone_tokens_per_s": round(1e3 * tokens / one),
                "efficiency": round(one / every, 3),
                **facts,
            }
        )
    own = found[0]["median_ms"]
    return [row | {"times_fusewire": round(row["median_ms"] / own, 2)} for row in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--processes", type=int, help="by default one for each GPU")
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(CASES))
    parser.add_argument("--texts", type=int, nargs="+", help="of each process")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system")
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        run(options)
        # gloo's thread takes the GIL to drop its last tensor. Where the interpreter has ended by
        # then, that aborts the process.
        sys.stdout.flush()
        os._exit(0)
    import torch

    processes = options.processes or torch.cuda.device_count()
    if processes < 2:
        parser.error(f"processes: got {processes}, wanted two or more, each with a GPU of its own")
    launch = "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)
    command = [sys.executable, "-m", *launch, "-m", "benchmarks.training_ddp", *sys.argv[1:]]
    # The reason is in docs/training.md.
    return subprocess.run(command, env=os.environ | {"NCCL_NVLS_ENABLE": "0"}).returncode


if __name__ == "__main__":
    sys.exit(main())

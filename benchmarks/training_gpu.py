"""Speed of training on a GPU, compared with transformers on torch: `python -m benchmarks.training
--device cuda`.

Steps under bf16 autocast, with dropout 0.1: forward, loss, backward, clipping to a norm of 1 and
AdamW (torch's is the fused one), of batches in host memory, ragged and padded to their longest
text. "fusewire, Step" computes the loss of a language model without its logits (`CrossEntropy`),
"fusewire" as transformers does, and with "bf16 parameters" there are no fp32 ones. Rivals are
transformers' models without torch.compile, and with it, in its default mode and as
"reduce-overhead", which captures CUDA graphs. Their attention is torch's SDPA, by cuDNN where it
can. Compiled models get texts padded to the longest of all batches, as users do to have one shape.
A translator's batches differ in rows too, and compiling for dynamic shapes does not end in minutes:
there they get the first batch again and again, which is their best case, as one shape needs no
further padding and one graph. Every batch has as many target tokens. Systems run all batches in
turns after warm-ups with each; compared are medians of milliseconds, by the host's clock, until the
device is done. A system whose step does not fit into the GPU's memory with the others is left out.

Adds rows to bench-results/training_gpu.jsonl (one JSON object each).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import records, training_report
from benchmarks.training_rivals import (
    KINDS,
    LEARNING_RATE,
    SHAPES,
    batch_of,
    counted,
    make,
    token_mask,
)

CASES = {
    "BERT-base": (8, 32, 128, 256),
    "BERT-large": (32,),
    "Transformer-big, 6 + 6 layers": (512, 4096, 15000),
    "Transformer-big, 24 + 24 layers": (4096,),
    "GPT-2 124M": (8, 64),
    "GPT-2 large": (16,),
    "ViT-B/32": (256,),
}
OURS, STEP, EAGER = "fusewire", "fusewire, Step", "transformers"
HALF = "fusewire, Step, bf16 parameters"
LEAN = f"{HALF}, recompute norm"
COMPILED, GRAPHS = "transformers, compiled", "transformers, reduce-overhead"
THROUGH_COMPILER = (COMPILED, GRAPHS)
SYSTEMS = (STEP, HALF, OURS, EAGER, *THROUGH_COMPILER)
# Limits of a case, as CUDA graphs have their own memory for every batch with other sizes.
MOST_BATCHES, MOST_TOKENS = 8, 40_000
WARM_UPS = 3  # rounds over all batches that are not timed
# Models whose loss our step computes without the logits of a whole batch.
HEADED = ("GPT2LMHeadModel", "MarianMTModel")
MOST_RECOMPILATIONS = 256
SEGMENTS = 4  # of layers, whose gradients are sent while others are computed
# Allowed difference of the first losses from transformers', in bf16 and without dropout.
LOSS_TOLERANCE = 2e-2

Batch = dict[str, Any]


def stepping(
    system: str, shape: str, device: str = "cuda", group: Any = None
) -> tuple[Any, Callable[[Batch], Any]]:
    """Returns a model on the GPU, and a step with a batch that returns its loss and does not
    synchronise.

    `group`: processes that train it together, under DistributedDataParallel; Adam's moments are
    sharded over them. On a CPU in fp32.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    if system not in (*SYSTEMS, LEAN):
        known = ", ".join(f'"{each}"' for each in (*SYSTEMS, LEAN))
        raise SystemExit(f"system: got {system!r}, wanted one of {known}")
    model = make(shape).to(device).train()
    if system in (OURS, STEP, HALF, LEAN):
        from fusewire.train import Adam, CrossEntropy, Step, replace

        segments = 1 if group is None else min(SEGMENTS, model.config.num_hidden_layers)
        recompute = "norm" if system == LEAN else "none"
        if system in (HALF, LEAN):
            model = model.bfloat16()
        model = replace(model, segments=segments, recompute=recompute)
        ours = Adam(model.parameters(), lr=LEARNING_RATE, max_grad_norm=1.0, process_group=group)
        if system != OURS:
            headed = KINDS[SHAPES[shape]["kind"]][0] in HEADED
            loss = CrossEntropy().of_model if headed else None
            dtype = torch.bfloat16 if device == "cuda" else None
            return model, Step(model, ours, loss=loss, dtype=dtype)
        optimizer: Any = ours
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    call = model
    if system in THROUGH_COMPILER:
        # Each layer of a translator is compiled for each shape; beyond the limit they run eagerly.
        torch._dynamo.config.recompile_limit = MOST_RECOMPILATIONS
        mode = "reduce-overhead" if system == GRAPHS else None
        call = torch.compile(model, dynamic=False, mode=mode)
    if group is not None:
        call = DistributedDataParallel(model, process_group=group)

    def step(batch: Batch) -> Any:
        there = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
        # What is compiled keeps the attention that is preferred when it is first called.
        with torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda"), _attention():
            loss = call(**there).loss
        loss.backward()
        if system != OURS:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, step


def _attention() -> AbstractContextManager[None]:
    """While the context is open, SDPA is cuDNN's where that can compute it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(
        [
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.MATH,
        ],
        set_priority=True,
    )


def round_ms(step: Callable[[Batch], Any], batches: Sequence[Batch], device: str = "cuda") -> float:
    """Returns the milliseconds of one step, the mean of a round over all batches."""
    _settle(device)
    begin = time.perf_counter()
    for batch in batches:
        step(batch)
    _settle(device)
    return 1e3 * (time.perf_counter() - begin) / len(batches)


def _settle(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def made(shape: str, texts: int, seed: int = 1, device: str = "cuda") -> list[Batch]:
    """Returns batches in pinned memory, from which a GPU copies asynchronously."""
    import torch

    rng = np.random.default_rng(seed)
    first = batch_of(shape, texts, rng)
    count = min(max(MOST_TOKENS // int(token_mask(first).sum()), 1), MOST_BATCHES)
    numbers = [first, *(batch_of(shape, texts, rng) for _ in range(count - 1))]
    batches = [{k: torch.from_numpy(v) for k, v in b.items()} for b in numbers]
    if device == "cpu":
        return batches
    return [{k: v.pin_memory() for k, v in b.items()} for b in batches]


def of_one_shape(batches: Sequence[Batch]) -> list[Batch]:
    """Returns the batches with all texts padded to the longest of all."""
    from torch.nn.functional import pad

    longest = max(batch["input_ids"].shape[1] for batch in batches)

    def padded(value: Any) -> Any:
        return pad(value, (0, longest - value.shape[1])).pin_memory() if value.ndim == 2 else value

    return [{name: padded(value) for name, value in batch.items()} for batch in batches]


def for_compiled(shape: str, batches: Sequence[Batch]) -> list[Batch]:
    """Returns as many batches, of one shape."""
    kind = SHAPES[shape]["kind"]
    if kind == "marian":
        return [batches[0]] * len(batches)
    return of_one_shape(batches) if kind == "bert" else list(batches)


def few(shape: str, seed: int, device: str = "cuda") -> Batch:
    """Returns one small batch."""
    return made(shape, 100 if counted(shape) == "target tokens" else 4, seed, device)[0]


def tokens_of(batches: Sequence[Batch]) -> tuple[int, int]:
    """Returns the mean tokens of a batch, and the mean positions with padding."""
    masks = [token_mask(batch) for batch in batches]
    return round(np.mean([int(m.sum()) for m in masks])), round(np.mean([m.numel() for m in masks]))


def check(models: dict[str, tuple[Any, Callable[[Batch], Any]]], batch: Batch) -> None:
    """Raises SystemExit where a system's loss without dropout differs from transformers'."""
    found = {}
    for system, (model, step) in models.items():
        model.eval()
        found[system] = float(step(batch))
        model.train()
    for system, loss in found.items():
        if not abs(loss / found[EAGER] - 1) <= LOSS_TOLERANCE:
            raise SystemExit(f"{system}: got loss {loss}, wanted {found[EAGER]}, as transformers")


def run(
    models: Sequence[str],
    texts: Sequence[int] | None,
    systems: Sequence[str],
    rounds: int,
    out: Path,
) -> None:
    import torch
    from fusewire.kernels import OutOfMemory

    from benchmarks.gpu.facts import where

    found: records.Rows = []
    facts = where("fusewire", "torch", "transformers")
    contenders: dict[str, tuple[Any, Callable[[Batch], Any]]] = {}
    turns: dict[str, Callable[[], float]] = {}
    for shape in models:
        contenders.clear()
        turns.clear()
        gc.collect()  # frees the models of the previous case, whose steps hold memory
        torch.cuda.empty_cache()
        contenders |= {system: stepping(system, shape) for system in systems}
        # Compiled models would be compiled once more.
        checked = {s: each for s, each in contenders.items() if s not in THROUGH_COMPILER}
        check(checked, few(shape, seed=time.time_ns() % 2**32))
        for count in texts or CASES.get(shape, (8,)):
            batches = made(shape, count)
            alike = for_compiled(shape, batches)
            turns = {
                s: partial(round_ms, step, alike if s in THROUGH_COMPILER else batches)
                for s, (_, step) in contenders.items()
            }
            for system in list(turns):
                try:
                    for _ in range(WARM_UPS):
                        turns[system]()
                except (torch.OutOfMemoryError, OutOfMemory) as error:
                    print(f"{shape}, {count}: {system} is left out: {str(error).splitlines()[0]}")
                    del turns[system]
                    torch.cuda.empty_cache()
            ms: dict[str, list[float]] = {system: [] for system in turns}
            for _ in range(rounds):
                for system, turn in turns.items():
                    ms[system].append(turn())
            if not turns:
                continue
            tokens, padded = tokens_of(batches)
            own = median(ms.get(STEP) or next(iter(ms.values())))
            rows = [
                {
                    "benchmark": training_report.GPU,
                    "model": shape,
                    "case": f"{count} {counted(shape)}",
                    "system": system,
                    "texts": count,
                    "tokens": tokens,
                    "padded_tokens": padded,
                    "median_ms": round(median(each), 3),
                    "least_ms": round(min(each), 3),
                    "tokens_per_s": round(1e3 * tokens / median(each)),
                    "times_step": round(median(each) / own, 2),
                    **facts,
                }
                for system, each in ms.items()
            ]
            found += rows
            records.append(out / f"{training_report.GPU}.jsonl", rows)
            print(training_report.gpu_table(rows), flush=True)
    print(training_report.gpu_table(found))

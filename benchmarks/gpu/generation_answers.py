"""EET's grid: whole answers of our engine and of transformers with compiled steps, taking turns."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from torch import Tensor

from benchmarks.gpu import generation_own as own
from benchmarks.gpu import generation_transformers as usual
from benchmarks.gpu.generation_bench import Bench
from benchmarks.gpu.generation_workload import EET_PROMPTS, EET_TOTAL, Case
from benchmarks.records import Rows

RUNS = 3  # of each side; their median counts

# (prompts [batch, tokens], new tokens) -> the seconds, and the new tokens of each prompt
Answer = Callable[[Tensor, int], tuple[float, list[list[int]]]]


def measure(
    bench: Bench, of_part: list[Case], options: argparse.Namespace, facts: dict[str, Any]
) -> Iterator[Rows]:
    for case in of_part:
        yield from _lengths(bench, case, facts, alone=options.no_compiled_transformers)
        bench.forget()


def _lengths(bench: Bench, case: Case, facts: dict[str, Any], *, alone: bool) -> Iterator[Rows]:
    """Yields the rows of each prompt length; both sides stay warm between lengths."""
    with own.engine(bench.own, case.batch, EET_TOTAL) as engine:

        def ours(prompts: Tensor, new: int) -> tuple[float, list[list[int]]]:
            found = own.Answers(engine, prompts.tolist(), new)
            return found.seconds, found.tokens

        sides: dict[str, Answer] = {"fusewire": ours}
        if not alone:
            runs = usual.Run(
                bench.usual, case.batch, EET_TOTAL, bench.place, compiled=bench.compiled
            )
            sides[runs.name] = runs.answer
        for length in EET_PROMPTS:
            yield _answers(bench, case, length, sides, facts)


def _answers(
    bench: Bench, case: Case, length: int, sides: dict[str, Answer], facts: dict[str, Any]
) -> Rows:
    """Times the sides in turns."""
    shape, new = case.shape, EET_TOTAL - length
    prompts = [bench.ids(case, length, seed) for seed in range(RUNS)]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    tokens: dict[str, list[list[int]]] = {}
    for answer in sides.values():
        answer(prompts[0], 4)  # warms up
    for prompt in prompts:
        for name, answer in sides.items():
            taken, tokens[name] = answer(prompt, new)
            seconds[name].append(taken)
    steps = sum(shape.step_bytes(case.batch, at) for at in range(length + 1, EET_TOTAL))
    floor = steps / facts["copy_tb_s"] * 1e-9
    floor += shape.prompt_flops([length] * case.batch) / facts["matmul_tflops"] * 1e-9
    rows = []
    for name, times in seconds.items():
        ms = median(times) * 1e3
        rows.append(
            {
                "part": "eet",
                "model": shape.name,
                "case": f"eet {case.batch} x {EET_TOTAL}, prompt {length}",
                "batch": case.batch,
                "prompt": length,
                "system": name,
                "run_ms": round(ms, 2),
                "ms_per_token": round(ms / new, 4),
                "floor_ms": round(floor, 2),
                "times_floor": round(ms / floor, 3),
                "same_tokens": round(_same(tokens["fusewire"], tokens[name]), 3),
            }
        )
    if len(rows) > 1:
        rows[0]["times_transformers"] = round(rows[1]["run_ms"] / rows[0]["run_ms"], 3)
    return rows


def _same(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """Returns the share of tokens before the first difference: in fp16 the likeliest tokens may
    have nearly equal logits."""
    agreed = 0
    for one, other in zip(ours, theirs, strict=True):
        pairs = zip(one, other, strict=True)
        agreed += next((at for at, (a, b) in enumerate(pairs) if a != b), len(one))
    return agreed / sum(map(len, ours))

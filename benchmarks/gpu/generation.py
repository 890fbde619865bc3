"""Generation compared with torch's, fp16: one step, a prompt, whole answers, and long contexts.

The output of every contender of a step or a prompt is first compared with fp32 on new random ids;
one that exceeds the tolerance is reported and not timed. `device_ms` is the time between events
around the device's work: for ours the captured step and its sampling in sequence, for the rival its
graph. `with_host_ms` is the time of a step as the engine runs it, whose inputs the host packs and
whose tokens it reads; `wall_ms` is the median time between two tokens of the engine itself. The
floor is the bytes that a step reads, over the copy bandwidth of the same run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from fusewire import kernels
from fusewire.models.decoder import DecoderModel

from benchmarks.gpu import generation_answers
from benchmarks.gpu import generation_own as own
from benchmarks.gpu import generation_torch as rival
from benchmarks.gpu import generation_transformers as usual
from benchmarks.gpu.facts import matmul, matmul_tflops
from benchmarks.gpu.generation_bench import Bench, Side, timed
from benchmarks.gpu.generation_models import GPU, Past, Place, own_model
from benchmarks.gpu.generation_workload import BYTES, SHAPES, Case, cases
from benchmarks.records import Rows

WALL_TOKENS = 128  # of each answer, around the case's context length
WALL_ATTEMPTS = 5  # until all requests ran concurrently, which a busy host may prevent
CHUNK_TOKENS = 2048  # the engine's default maximum of prompt tokens per step


def run(options: argparse.Namespace, facts: dict[str, Any], place: Place = GPU) -> Iterator[Rows]:
    torch._dynamo.config.recompile_limit = 64
    for model in SHAPES:
        asked = {part: cases(part, options.models, options.batches) for part in options.parts}
        asked = {part: [c for c in of if c.model == model] for part, of in asked.items()}
        if not any(asked.values()):
            continue
        bench = Bench(model, place)
        for part, of_part in asked.items():
            for rows in PARTS[part](bench, of_part, options, facts):
                yield [
                    {**facts, "benchmark": "generation", "dtype": place.dtype, **row}
                    for row in rows
                ]
        bench.forget()
        del bench


def _steps(
    bench: Bench, of_part: list[Case], options: argparse.Namespace, facts: dict[str, Any]
) -> Iterator[Rows]:
    for case in of_part:
        rows = _step(bench, case, bench.parts(), facts, "step")
        bench.forget()
        rows[0]["wall_ms"] = round(_wall_ms(bench.own, bench, case), 4)
        yield rows
        bench.forget()
        yield from _float8_cache(bench, case, facts, "step")
    if options.no_compiled_transformers:
        return
    # Last, and apart from the others: its graphs free the cuBLAS workspaces that earlier captured
    # graphs still point to.
    for case in of_part:
        past, ids = Past(case, bench.place), bench.ids(case, 1)
        bounds = bench.bounds(past, ids)
        side = usual.Static(bench.usual, past, ids, bench.place, compiled=bench.compiled)
        found, ms = timed([side], bounds)
        yield [_step_row(row, ms, case, facts, "step") for row in found]
        del side
        bench.forget()


def _contexts(
    bench: Bench, of_part: list[Case], options: argparse.Namespace, facts: dict[str, Any]
) -> Iterator[Rows]:
    """Yields the rows of long contexts, with the rival where there is memory for the KV cache
    twice."""
    first: dict[int, tuple[Case, float]] = {}
    parts = bench.parts()
    for case in of_part:
        fits = 2.2 * case.kv_bytes < bench.place.free_bytes()
        rows = _step(bench, case, parts if fits else None, facts, "context")
        if "device_ms" in rows[0]:
            ms = rows[0]["device_ms"]
            shortest, least = first.setdefault(case.batch, (case, ms))
            bytes_then = case.shape.step_bytes(shortest.batch, shortest.context)
            bytes_now = case.shape.step_bytes(case.batch, case.context)
            rows[0]["shortest"] = shortest.context
            rows[0]["times_shortest"] = round(ms / least, 4)
            rows[0]["bytes_times_shortest"] = round(bytes_now / bytes_then, 4)
        yield rows
        bench.release()
        yield from _float8_cache(bench, case, facts, "context")
    bench.forget()


def _float8_cache(bench: Bench, case: Case, facts: dict[str, Any], part: str) -> Iterator[Rows]:
    """Yields the rows of our step over a float8 KV cache, on devices that have kernels for it."""
    if bench.place.device == "cpu":
        return
    model = own_model(bench.usual, bench.place, kv_cache_dtype="fp8")
    rows = _step(bench, case, None, facts, part, model)
    if part == "step":
        model._replays = None
        bench.release()
        rows[0]["wall_ms"] = round(_wall_ms(model, bench, case), 4)
    yield rows
    del model
    bench.forget()


def _step(
    bench: Bench,
    case: Case,
    parts: rival.Parts | None,
    facts: dict[str, Any],
    part: str,
    model: DecoderModel | None = None,
) -> Rows:
    """Returns the rows of our step, and of torch's in a graph where `parts` are given. `model`:
    another model of ours, with a float8 KV cache."""
    past, ids = Past(case, bench.place, float8=model is not None), bench.ids(case, 1)
    bounds = bench.bounds(past, ids)
    pages = own.Pages(model or bench.own, case)
    mine = own.Step(pages, past, ids)
    sides: list[Side] = [mine]
    if parts is not None:
        sides.append(rival.Graph(bench.weights, past, ids, parts, bench.place))
    more = []
    try:
        more.append(mine.launched())
    except kernels.Error as error:  # the other rows are still useful
        print(f"{case.model} {case.name}: the launches were not recorded: {error}", flush=True)
    found, ms = timed(sides, bounds, more)
    kv_bytes = 1 if past.float8 else BYTES
    rows = [_step_row(row, ms, case, facts, part, kv_bytes) for row in found]
    rows[0]["replayed"] = mine.replayed
    for contender in more if "device_ms" in rows[0] else []:
        rows[0]["with_host_ms"] = rows[0]["device_ms"]
        rows[0]["device_ms"] = round(ms[contender.name], 4)
        rows[0]["times_floor"] = round(rows[0]["device_ms"] / rows[0]["floor_ms"], 4)
    for side, row in zip(sides, rows, strict=True):
        if isinstance(side, rival.Graph):
            row["attention"] = side.attention
    return rows


def _step_row(
    row: dict[str, Any],
    ms: dict[str, float],
    case: Case,
    facts: dict[str, Any],
    part: str,
    kv_bytes: int = BYTES,
) -> dict[str, Any]:
    read = case.shape.step_bytes(case.batch, case.context, kv_bytes)
    floor = read / facts["copy_tb_s"] * 1e-9
    row |= {"part": part, "model": case.shape.name, "case": f"{part} {case.name}"}
    row |= {"batch": case.batch, "context": case.context, "floor_ms": round(floor, 4)}
    if row["system"] in ms:
        row["times_floor"] = round(ms[row["system"]] / floor, 4)
    return row


def _prompts(
    bench: Bench, of_part: list[Case], options: argparse.Namespace, facts: dict[str, Any]
) -> Iterator[Rows]:
    for case in of_part:
        past, ids = Past(case, bench.place), bench.ids(case, case.context)
        bounds = bench.bounds(past, ids)
        pages = own.Pages(bench.own, case)
        at_once = max(1, CHUNK_TOKENS // case.context)
        sides = [
            own.Prompt("fusewire", pages, ids, case.batch),
            own.Prompt(f"fusewire, {CHUNK_TOKENS} tokens a step", pages, ids, at_once),
            rival.Graph(bench.weights, past, ids, bench.parts(), bench.place),
            usual.Prompt(bench.usual, ids, bench.place),
        ]
        ceiling = [matmul()] if bench.place.device != "cpu" else []
        rows, ms = timed(sides, bounds, ceiling)
        rate = matmul_tflops(ms["matmul"]) if ceiling else facts["matmul_tflops"]
        flops = case.shape.prompt_flops([case.context] * case.batch)
        for row in rows:
            row |= {"part": "prompt", "model": case.shape.name, "case": f"prompt {case.name}"}
            row |= {"tokens": ids.numel(), "gflops": round(flops * 1e-9, 1), "matmul_tflops": rate}
            if row["system"] in ms:
                share = flops / ms[row["system"]] * 1e-9 / rate
                row["share_of_matmul"] = round(share, 4)
        yield rows
        del sides, pages
        bench.forget()


def _wall_ms(model: DecoderModel, bench: Bench, case: Case) -> float:
    """Returns the engine's median time between two tokens while all sequences run, around the
    case's context length."""
    new = min(WALL_TOKENS, case.context)
    length = max(1, min(case.context, case.shape.positions - new // 2) - new // 2)
    with own.engine(model, case.batch, length + new) as engine:
        own.Answers(engine, bench.ids(case, length, 1).tolist(), new)
        prompts = bench.ids(case, length, 2).tolist()
        for _ in range(WALL_ATTEMPTS):
            if gaps_s := own.Answers(engine, prompts, new).step_gaps_s():
                return median(gaps_s) * 1e3
    raise RuntimeError(f"{case.name}: its requests never ran at the same time")


PARTS: dict[str, Callable[..., Iterator[Rows]]] = {
    "step": _steps,
    "prompt": _prompts,
    "eet": generation_answers.measure,
    "context": _contexts,
}

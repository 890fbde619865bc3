"""Translation with beam search, compared with transformers', and its step with one written in torch
(seq2seq_torch.py), fp16 (T5: bfloat16). All sources are sent at once, and no text ends by itself.

A model is first compared with fp32: the log-probability of each token of our texts, and the score
of our texts with that of transformers' own; one that exceeds the tolerance is reported and not
timed. `tokens_per_s` counts the best text of each source, with its encoder pass and all work of the
engine. `step_ms` is the time from one step of the engine to the next. `device_ms` is the device's
work of a step in the middle of the texts (model, candidates, page copies), between events around
replays with inputs on the device; `torch_step_ms` is the same by torch; `beam_share` is the share
of candidates and copies in it; `host_us` is the host's time of a step by part. The floor is the
longer of a step's bytes over the copy bandwidth and its FLOPs over the matmul rate, both of the
same run.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings

from benchmarks.gpu import seq2seq_models as usual
from benchmarks.gpu import seq2seq_own as own
from benchmarks.gpu import seq2seq_torch
from benchmarks.gpu.generation_bench import allowed_difference
from benchmarks.gpu.generation_models import GPU, Place
from benchmarks.gpu.seq2seq_workload import SHAPES, Case, Shape, cases
from benchmarks.gpu.timing import Contender, medians_ms
from benchmarks.records import Rows
from benchmarks.translated import translated

OURS, RIVAL = "fusewire", "transformers"
CHECKED, CHECKED_BEAMS, CHECKED_LENGTH = 4, 4, 24  # sources
RUNS = 3
LEAST_LENGTH = 128  # minimum positions of the engine's sequences, and of its sources
# For rivals: where a run takes longer than this, one run is enough.
LONG_RUN_S = 2.0


def run(options: argparse.Namespace, facts: dict[str, Any], place: Place = GPU) -> Iterator[Rows]:
    for model, shape in SHAPES.items():
        of_model = cases([model], options.batches, options.lengths, options.beams)
        if options.seq2seq_models and model not in options.seq2seq_models:
            continue
        if not of_model:
            continue
        there = replace(place, dtype=shape.dtype) if place.device != "cpu" else place
        yield from _model(shape, there, of_model, options, facts)
        if place.device != "cpu":
            torch.cuda.empty_cache()


def _model(
    shape: Shape,
    place: Place,
    of_model: list[Case],
    options: argparse.Namespace,
    facts: dict[str, Any],
) -> Iterator[Rows]:
    with tempfile.TemporaryDirectory() as work:
        began = time.perf_counter()
        theirs = usual.transformers_model(shape, place, Path(work))
        made = time.perf_counter()
        settings = GenerationSettings(
            dtype=place.dtype,
            max_sequences=max(CHECKED * CHECKED_BEAMS, *(case.rows for case in of_model)),
            max_length=max(LEAST_LENGTH, *(case.source for case in of_model)),
            # All sources of a case in one step, and the first tokens of their texts.
            max_batch_tokens=max(256, *(case.batch * (case.source + 1) for case in of_model)),
            prefix_caching=False,
        )
        with GenerationEngine(work, settings, place.device) as engine:
            loaded = time.perf_counter()
            print(
                f"{shape.name}: made in {made - began:.1f} s, loaded in {loaded - made:.1f} s",
                flush=True,
            )
            wrong = _check(engine, theirs, shape, place)
            parts = seq2seq_torch.parts_of(place)
            for case in of_model:
                rows = (
                    [wrong]
                    if wrong
                    else _case(engine, theirs, shape, case, options, facts, parts, place)
                )
                common = {**facts, "benchmark": "seq2seq_gpu", "dtype": place.dtype}
                common |= {"model": shape.name, "case": case.name, "batch": case.batch}
                common |= {"beams": case.beams, "source": case.source, "new": case.new}
                yield [{**common, **row} for row in rows]


def _sources(shape: Shape, count: int, length: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return rng.integers(3, shape.vocabulary, (count, length)).tolist()


def _check(
    engine: GenerationEngine, theirs: Any, shape: Shape, place: Place
) -> dict[str, Any] | None:
    """Returns None, or a row with our difference from fp32 where it is too large: our tokens'
    log-probabilities differ by more than twice those of transformers in the same dtype, or our
    texts' scores are below those of transformers by more than that."""
    beams, new = CHECKED_BEAMS, 16
    sources = _sources(shape, CHECKED, CHECKED_LENGTH, seed=9)
    found = translated(engine, sources, beams, new, streamed=True)
    exact = copy.deepcopy(theirs).float()
    given = torch.tensor(sources, device=place.device)
    other = usual.translated(theirs, given, beams, new).tolist()
    off = plain = worse = largest = 0.0
    for source, target, reported, text in zip(
        sources, found.tokens, found.log_probs, other, strict=True
    ):
        right = usual.log_probs(exact, source, target)
        rounded = usual.log_probs(theirs, source, target)
        off = max(off, float((torch.tensor(reported).double() - right).abs().max()))
        plain = max(plain, float((rounded - right).abs().max()))
        largest = max(largest, float(right.abs().max()))
        ahead = usual.log_probs(exact, source, text).sum() - right.sum()
        worse = max(worse, float(ahead) / new)
    allowed = allowed_difference(plain, largest, place.torch_dtype)
    same = sum(a == b for a, b in zip(found.tokens, other, strict=True))
    print(
        f"{shape.name}: log-probabilities off by {off:.2g} (transformers {plain:.2g}, allowed "
        f"{allowed:.2g}), {same} of {CHECKED} texts equal, scores of a token below by {worse:.2g}",
        flush=True,
    )
    off = max(off, worse)
    if off <= allowed:
        return None
    return {
        "system": OURS,
        "max_abs_difference": round(off, 6),
        "allowed_difference": round(allowed, 6),
    }


def _case(
    engine: GenerationEngine,
    theirs: Any,
    shape: Shape,
    case: Case,
    options: argparse.Namespace,
    facts: dict[str, Any],
    parts: seq2seq_torch.Parts,
    place: Place,
) -> Rows:
    graph = None if options.without_rivals else _graph(theirs, shape, case, parts, place)
    rows = [_own_row(engine, shape, case, facts, graph)]
    if not options.without_rivals:
        rows.append(_rival_row(theirs, shape, case))
        seconds = rows[1]["seconds"] / rows[0]["seconds"]
        rows[0]["times_transformers"] = round(seconds, 2)
    return rows


def _graph(
    theirs: Any, shape: Shape, case: Case, parts: seq2seq_torch.Parts, place: Place
) -> seq2seq_torch.Graph | None:
    """Returns None for a model that the torch step does not support. Raises RuntimeError where its
    output is wrong."""
    if shape.family not in seq2seq_torch.FAMILIES:
        return None
    graph = seq2seq_torch.Graph(theirs, case, parts, place)
    off, allowed = graph.off()
    if off > allowed:
        raise RuntimeError(f"{graph.name}: {shape.name} {case.name}: off by {off} of {allowed}")
    return graph


def _own_row(
    engine: GenerationEngine,
    shape: Shape,
    case: Case,
    facts: dict[str, Any],
    graph: seq2seq_torch.Graph | None,
) -> dict[str, Any]:
    def once(seed: int) -> float:
        sources = _sources(shape, case.batch, case.source, seed)
        return translated(engine, sources, case.beams, case.new).seconds

    once(0)
    seconds = median(once(seed) for seed in range(1, RUNS + 1))
    steps = _watched(engine, once)
    with own.reading_first(engine):
        synchronous_s = median(once(seed) for seed in range(1, RUNS + 1))
        read = _watched(engine, once)
    device = own.DeviceStep(engine, read, case)
    sides = device.contenders()
    if graph is not None:
        sides.append(Contender(graph.name, graph.run, graph.stream))
    ms = medians_ms(sides, rounds=5)
    floor = case.floor_ms(shape, facts)
    by_torch = {}
    if graph is not None:
        torch_ms = ms[graph.name]
        by_torch = {
            "torch_step_ms": round(torch_ms, 4),
            "times_torch": round(torch_ms / ms["step"], 2),
        }
    return by_torch | {
        "system": OURS,
        "seconds": round(seconds, 5),
        "tokens_per_s": round(case.batch * case.new / seconds),
        "step_ms": round(steps.step_ms(), 4),
        "device_ms": round(ms["step"], 4),
        "floor_ms": round(floor, 4),
        "times_floor": round(ms["step"] / floor, 3),
        "synchronous_step_ms": round(read.step_ms(), 4),
        "synchronous_seconds": round(synchronous_s, 5),
        "engine_over_device": round(steps.step_ms() / ms["step"], 3),
        "beam_share": round(ms["beams"] / ms["step"], 4),
        "beams_ms": round(ms["beams"], 4),
        "replayed": device.replayed,
        "page_copies": round(read.mean_copies(), 1),
        "host_us": steps.host_us(),
    }


def _watched(engine: GenerationEngine, once: Callable[[int], float]) -> own.Steps:
    """Returns the run with the median step time of RUNS runs."""
    runs = []
    for _ in range(RUNS):
        with own.watched(engine) as steps:
            once(RUNS + 1)
        runs.append(steps)
    return sorted(runs, key=own.Steps.step_ms)[RUNS // 2]


def _rival_row(theirs: Any, shape: Shape, case: Case) -> dict[str, Any]:
    device = next(theirs.parameters()).device

    def once(seed: int) -> float:
        sources = torch.tensor(_sources(shape, case.batch, case.source, seed), device=device)
        began = time.perf_counter()
        found = usual.translated(theirs, sources, case.beams, case.new).tolist()
        assert all(len(text) == case.new for text in found)
        return time.perf_counter() - began

    once(0)
    seconds = [once(1)]
    if seconds[0] < LONG_RUN_S:
        seconds += [once(seed) for seed in range(2, RUNS + 1)]
    found = median(seconds)
    return {
        "system": RIVAL,
        "seconds": round(found, 5),
        "tokens_per_s": round(case.batch * case.new / found),
    }

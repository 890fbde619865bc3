"""Encoders compared with torch's: BERT-base and -large, fp16, the grids of `workload.py`.

The output of every contender for the same batch is first compared with transformers in fp32 on the
real tokens; one that exceeds the tolerance is reported and not timed. `device_ms` is one forward
with its inputs on the device; `wall_ms` is the host's time per call, with inputs from the host and
many calls in a row.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from fusewire.batch import Batch
from torch import Tensor

from benchmarks.gpu import rivals
from benchmarks.gpu.facts import matmul, matmul_tflops
from benchmarks.gpu.timing import ROUNDS, Contender, medians_ms, wall_ms
from benchmarks.gpu.workload import COMPILED, COMPILED_PADDED, GRIDS, SIZES, Case
from benchmarks.records import Rows

if TYPE_CHECKING:
    from fusewire.models import EncoderModel

BATCHES = 3  # with different ids, used in turn
# Allowed difference from fp32: this many times that of transformers in fp16, and units in the last
# place of the largest value.
TIMES_TRANSFORMERS, ULPS = 2.0, 4
# The matmul rate of the run that the goals in ms are from (BERT-base 16x512 in 1.65 ms); times of
# other runs are scaled to it.
GOAL_TFLOPS = 761.0

Side = Any  # load, forward, output, name, stream: a Fusewire, Padded or Packed


def run(options: argparse.Namespace, facts: dict[str, Any]) -> Iterator[Rows]:
    torch._dynamo.config.recompile_limit = 64
    ceiling = matmul()  # takes turns with the encoders, so that all of them see the same clock rate
    for size in options.sizes:
        cases = _cases(options, size)
        if not cases:
            continue
        exact = rivals.bert(SIZES[size])
        model = None if options.without_own else _own_model(exact)
        for case, grids in cases:
            compiled = options.compile_all or (size, case.name) in COMPILED
            start = partial(_together, model, compiled=compiled)
            yield bench_case(case, grids, exact, start, ceiling, facts)
            _forget()
        # Last, and apart from the others: its graphs free the cuBLAS workspaces that earlier
        # captured graphs still point to.
        for case, grids in cases:
            if (size, case.name) in COMPILED_PADDED and not options.no_compiled_transformers:
                yield bench_case(case, grids, exact, _compiled_padded, ceiling, facts)
                _forget()
        del exact, model
        _forget()


def _own_model(exact: Any) -> EncoderModel:
    from benchmarks.gpu import own  # needs the compiled library; the rivals do not

    return own.encoder(exact)


def _own_side(model: EncoderModel, batch: Batch) -> Side:
    from benchmarks.gpu import own

    return own.Fusewire(model, batch)


def _cases(options: argparse.Namespace, size: str) -> list[tuple[Case, list[str]]]:
    """Returns each case once, with all grids that contain it, including those that were not
    selected."""
    asked = dict.fromkeys(case for grid in options.grids for case in GRIDS[grid])
    return [
        (case, [grid for grid, cases in GRIDS.items() if case in cases])
        for case in asked
        if case.size == size and (not options.cases or case.name in options.cases)
    ]


def bench_case(
    case: Case,
    grids: list[str],
    exact: Any,
    start: Callable[[Any, Batch], list[Side]],
    ceiling: Contender,
    facts: dict[str, Any],
) -> Rows:
    """Returns one row for each side that `start` returns for the fp16 model and a batch."""
    batches = [case.batch(seed) for seed in range(BATCHES)]
    reference = rivals.Padded(exact, batches[0])
    reference.forward()
    wanted = reference.output()
    inexact = rivals.half(exact)
    usual = rivals.Padded(inexact, batches[0])
    allowed = TIMES_TRANSFORMERS * _difference(usual, wanted)
    allowed += ULPS * float(torch.finfo(torch.float16).eps) * float(wanted.abs().max())
    sides = start(inexact, batches[0])
    differences = {side.name: _difference(side, wanted) for side in sides}
    right = [side for side in sides if differences[side.name] <= allowed]
    ms = medians_ms([*(_contender(side, batches) for side in right), ceiling])
    facts = facts | {"matmul_tflops": matmul_tflops(ms.pop(ceiling.name))}
    walls = {side.name: wall_ms(_caller(side, batches), torch.cuda.synchronize) for side in right}
    lengths = case.lengths()
    flops = SIZES[case.size].flops(lengths)
    rows = []
    for side in sides:
        row = {
            **facts,
            "benchmark": "encoder",
            "model": SIZES[case.size].name,
            "case": case.name,
            "grids": grids,
            "dtype": "float16",
            "tokens": sum(lengths),
            "gflops": round(flops * 1e-9, 2),
            "system": side.name,
            "max_abs_difference": round(differences[side.name], 5),
            "allowed_difference": round(allowed, 5),
        }
        if side.name in ms:
            row |= _speed(side.name, ms, flops, facts) | {"wall_ms": round(walls[side.name], 4)}
        if side.name == "fusewire":
            row |= {"replayed": side.replayed, "computed_tokens": side.computed_tokens}
        rows.append(row)
    return rows


def _together(
    model: EncoderModel | None, inexact: Any, batch: Batch, *, compiled: bool
) -> list[Side]:
    sides = [rivals.Padded(inexact, batch), rivals.Packed(inexact, batch, compiled=False)]
    if compiled:
        sides.append(rivals.Packed(inexact, batch, compiled=True))
    return sides if model is None else [_own_side(model, batch), *sides]


def _compiled_padded(inexact: Any, batch: Batch) -> list[Side]:
    return [rivals.compiled_padded(inexact, batch)]


def _difference(side: Side, wanted: Tensor) -> float:
    side.forward()
    torch.cuda.synchronize()
    found = (side.output().to(wanted.device) - wanted).abs().max().item()
    return found if found == found else float("inf")  # NaN counts as the largest difference


def _contender(side: Side, batches: list[Any]) -> Contender:
    return Contender(
        side.name,
        lambda: side.forward(),  # looked up at each call, because `load` may replace it
        side.stream,
        prepare=lambda turn: side.load(batches[turn % len(batches)]),
    )


def _caller(side: Side, batches: list[Any]) -> Any:
    if side.name == "fusewire":
        return lambda i: side.model.encode(batches[i % len(batches)])

    def call(i: int) -> None:
        side.load(batches[i % len(batches)])
        side.forward()

    return call


def _speed(name: str, ms: dict[str, float], flops: int, facts: dict[str, Any]) -> dict[str, Any]:
    rate = flops / ms[name] * 1e-9  # TFLOP/s
    found: dict[str, Any] = {
        "device_ms": round(ms[name], 4),
        "rounds": ROUNDS,
        "share_of_matmul": round(rate / facts["matmul_tflops"], 4),
        "ms_at_goal_rate": round(ms[name] * facts["matmul_tflops"] / GOAL_TFLOPS, 4),
    }
    if name == "fusewire" and len(ms) > 1:
        strongest = min((n for n in ms if n != name), key=lambda n: ms[n])
        found["strongest_rival"] = strongest
        found["times_strongest_rival"] = round(ms[strongest] / ms[name], 3)
    return found


def _forget() -> None:
    """Drops what was compiled and captured for one case, so that the next starts alike."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()

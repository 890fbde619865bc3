"""One model on both sides, and how the contenders are checked against a reference and then
timed."""

from __future__ import annotations

import gc
from typing import Any

import torch
from fusewire import kernels
from torch import Tensor

from benchmarks.gpu import generation_torch as rival
from benchmarks.gpu.generation_models import (
    Past,
    Place,
    own_model,
    random_ids,
    transformers_model,
)
from benchmarks.gpu.generation_workload import SHAPES, Case
from benchmarks.gpu.timing import Contender, medians_ms
from benchmarks.records import Rows

# Allowed difference from fp32: this many times that of the same ops in fp16, computed one by one,
# and units in the last place of the largest value.
TIMES_PLAIN, ULPS = 2.0, 4


def allowed_difference(plain: float, largest: float, dtype: torch.dtype) -> float:
    """Returns the allowed difference from fp32 for values up to `largest`, where the same ops one
    by one differ by `plain`."""
    return TIMES_PLAIN * plain + ULPS * torch.finfo(dtype).eps * largest


Side = Any  # name, stream, forward, output


class Bench:
    """One model, ours and torch's, with the same weights."""

    def __init__(self, model: str, place: Place) -> None:
        self.place, self.shape = place, SHAPES[model]
        self.compiled = place.device != "cpu"  # compiling takes too long for tests
        self.usual = transformers_model(self.shape, place)
        self.own = own_model(self.usual, place)
        self.weights = rival.Weights.of(self.usual)

    def ids(self, case: Case, count: int, seed: int = 0) -> Tensor:
        found = random_ids(case.shape, case.batch * count, seed)
        return torch.tensor(found, device=self.place.device).view(case.batch, count)

    def parts(self) -> rival.Parts:
        if self.compiled:
            return rival.compiled_parts()
        return rival.before, rival.after, rival.logits_of

    def bounds(self, past: Past, ids: Tensor) -> tuple[Tensor, float]:
        """Returns the fp32 logits and the allowed difference from them."""
        exact = rival.plain_logits(self.weights, past, ids, torch.float32)
        plain = rival.plain_logits(self.weights, past, ids, self.place.torch_dtype)
        off, largest = float((plain - exact).abs().max()), float(exact.abs().max())
        del plain
        self.release()
        return exact, allowed_difference(off, largest, self.place.torch_dtype)

    def forget(self) -> None:
        """Frees what one case left."""
        torch.compiler.reset()
        self.release()

    def release(self) -> None:
        """Returns unused memory of both allocators to the device."""
        self.own._replays = None  # captured steps hold the cache that they write
        gc.collect()
        self.place.wait()
        kernels.default_allocator(self.own.place.device).trim()
        if self.place.device != "cpu":
            torch.cuda.empty_cache()


def timed(
    sides: list[Side], bounds: tuple[Tensor, float], more: list[Contender] | None = None
) -> tuple[Rows, dict[str, float]]:
    """Returns a row for each side, and the medians in ms of the sides that are correct, and of
    `more`."""
    wanted, allowed = bounds
    rows, right = [], []
    for side in sides:
        side.forward()
        if side.stream is not None:
            torch.cuda.synchronize()
        off = float((side.output().to(wanted.device) - wanted).abs().max())
        off = off if off == off else float("inf")  # NaN counts as the largest difference
        row = {"system": side.name, "max_abs_difference": round(off, 6)}
        rows.append(row | {"allowed_difference": round(allowed, 6)})
        if off <= allowed:
            right.append(side)
    contenders = [Contender(side.name, side.forward, side.stream) for side in right]
    ms = medians_ms([*contenders, *(more or [])])
    for row in rows:
        if row["system"] in ms:
            row["device_ms"] = round(ms[row["system"]], 4)
    return rows, ms

"""The op dropout_add. The rows of a result are followed by the sums of their columns if they are
wanted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors, normal
from tests.ops.norm_gradients import parameter_gradient
from tests.ops.philox import dropout_factors


class Dropped(NamedTuple):
    rows: int
    cols: int
    probability: float
    seed: int = 2**40 + 5
    offset: int = 3
    residual: bool = True
    summed: bool = False
    accumulate: bool = False


def kept(rows: int, cols: int, probability: float, seed: int, offset: int) -> np.ndarray:
    """Returns the mask of core/dropout.h, bool [rows, cols]."""
    return dropout_factors(np.arange(rows), np.arange(cols), probability, seed, offset) > 0


SHAPES = [
    Dropped(1, 1, 0.5),
    Dropped(5, 7, 0.1, residual=False),
    Dropped(3, 130, 0.9, seed=-1, offset=2**33 + 1),
    Dropped(17, 384, 0.1, residual=False),
    Dropped(9, 769, 0.3),
    Dropped(4, 100, 0.0),
    Dropped(0, 8, 0.5),
    Dropped(0, 8, 0.5, residual=False, summed=True),
    Dropped(1, 7, 0.5, summed=True),
    Dropped(130, 259, 0.1, residual=False, summed=True, accumulate=True),
]
LARGE = (
    Dropped(3000, 1024, 0.1),
    Dropped(70_000, 24, 0.5, residual=False),
    Dropped(20_000, 768, 0.1, residual=False, summed=True),
    Dropped(5001, 776, 0.1, summed=True, accumulate=True),
    Dropped(30_001, 33, 0.3, residual=False, summed=True),
)


def make(rng: np.random.Generator, s: Dropped) -> Arrays:
    return {
        "x": normal(rng, *s[:2]),
        "residual": normal(rng, *s[:2]),
        "before": normal(rng, s.cols),
    }


def dropped(o: Operands, a: Arrays, s: Dropped) -> np.ndarray:
    sums = parameter_gradient(o, a["before"], s.accumulate) if s.summed else None
    residual = o.rows(a["residual"]) if s.residual else None
    dropout = s.probability, s.seed, s.offset
    out = o.result(
        lambda out, stream: k.dropout_add(
            out, sums, o.rows(a["x"]), residual, *dropout, s.accumulate, stream
        ),
        (s.rows, s.cols),
    )
    return np.concatenate([out, o.place.numpy(sums)[None]]) if sums else out


def reference(t: Tensors, s: Dropped) -> torch.Tensor:
    mask = torch.from_numpy(kept(s.rows, s.cols, s.probability, s.seed, s.offset))
    out = torch.where(mask.to(t["x"].device), t["x"] / (1 - s.probability), 0)
    out = out + t["residual"] if s.residual else out
    if not s.summed:
        return out
    return torch.cat([out, (out.sum(0) + (t["before"] if s.accumulate else 0))[None]])


CASES = {
    "dropout_add": Case(
        SHAPES, make, dropped, reference, fp32=("before",), training=True, gpu_shapes=LARGE
    ),
}

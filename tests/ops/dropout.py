"""The op dropout_add."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors, normal
from tests.ops.philox import dropout_factors


class Dropped(NamedTuple):
    rows: int
    cols: int
    probability: float
    seed: int = 2**40 + 5
    offset: int = 3
    residual: bool = True


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
]


def dropped(o: Operands, a: Arrays, s: Dropped) -> np.ndarray:
    return o.result(
        k.dropout_add,
        (s.rows, s.cols),
        o.rows(a["x"]),
        o.rows(a["residual"]) if s.residual else None,
        s.probability,
        s.seed,
        s.offset,
    )


def reference(t: Tensors, s: Dropped) -> torch.Tensor:
    mask = torch.from_numpy(kept(s.rows, s.cols, s.probability, s.seed, s.offset))
    out = torch.where(mask.to(t["x"].device), t["x"] / (1 - s.probability), 0)
    return out + t["residual"] if s.residual else out


CASES = {
    "dropout_add": Case(
        SHAPES,
        lambda rng, s: {"x": normal(rng, *s[:2]), "residual": normal(rng, *s[:2])},
        dropped,
        reference,
        training=True,
        gpu_shapes=(Dropped(3000, 1024, 0.1), Dropped(70_000, 24, 0.5, residual=False)),
    ),
}

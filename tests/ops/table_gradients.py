"""The op embed_backward."""

from __future__ import annotations

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors, normal

# (tokens, table rows, hidden, scale, accumulate, type of the ids)
SHAPES = [
    (1, 1, 1, 1.0, False, "int64"),
    (40, 11, 33, 2.5, False, "int64"),
    (40, 11, 33, 2.5, True, "int32"),
    (500, 2, 130, 1.0, True, "int32"),
    (200, 1000, 384, 1.0, False, "int64"),
    (0, 5, 8, 1.0, False, "int64"),
]

LARGE = (
    (16384, 30522, 768, 1.0, False, "int64"),
    (16384, 2, 1024, 0.5, True, "int32"),
    (5000, 131, 1023, 1.0, False, "int32"),
)


def make(rng: np.random.Generator, shape: tuple) -> Arrays:
    tokens, table_rows, hidden = shape[:3]
    return {
        "ids": rng.integers(0, table_rows, tokens).astype(shape[5]),
        "dy": normal(rng, tokens, hidden),
        "before": normal(rng, table_rows, hidden),
    }


def table_gradient(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    ids = o.int32(a["ids"]) if shape[5] == "int32" else o.int64(a["ids"])
    rest = (ids, o.rows(a["dy"]), shape[3], shape[4])
    wide = o.of_parameters()
    if not shape[4]:
        return wide.result(k.embed_backward, shape[1:3], *rest)
    dtable = wide.rows(a["before"].copy())
    k.embed_backward(dtable, *rest, o.place.stream)
    return wide.read(dtable)


def summed(t: Tensors, shape: tuple) -> torch.Tensor:
    before = t["before"] if shape[4] else torch.zeros_like(t["before"])
    return before.index_add(0, t["ids"].long(), t["dy"] * shape[3])


CASES = {
    "embed_backward": Case(SHAPES, make, table_gradient, summed, training=True, gpu_shapes=LARGE)
}

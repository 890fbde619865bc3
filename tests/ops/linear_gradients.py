"""The ops linear_backward_weight and column_sums."""

from __future__ import annotations

import numpy as np
from fusewire import kernels as k

from tests.ops.case import MATRICES, Arrays, Case, Operands, normal

# (rows, out, in, accumulate)
WEIGHTS = [
    (1, 1, 1, False),
    (7, 33, 65, True),
    (130, 97, 100, False),
    (15, 56, 32, True),
    (400, 57, 300, True),
    (613, 5, 770, False),
    (4100, 30, 31, False),
    (0, 8, 9, False),
    (0, 8, 9, True),
]
GPU_WEIGHTS = (
    (4096, 1024, 512, False),
    (4096, 513, 999, True),
    (17000, 256, 128, True),
    (512, 768, 3072, False),
    (37, 40000, 64, False),
)


def make_weight(rng: np.random.Generator, shape: tuple) -> Arrays:
    rows, out, inner = shape[:3]
    return {
        "dy": normal(rng, rows, out),
        "x": normal(rng, rows, inner),
        "before": normal(rng, out, inner),
    }


def weight_gradient(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    wide = o.of_parameters()
    dy, x = o.rows(a["dy"]), o.rows(a["x"])

    def call(dw: k.Tensor, stream: k.Stream) -> None:
        k.linear_backward_weight(dw, dy, x, shape[3], stream)

    if shape[3]:
        dw = wide.rows(a["before"].copy())
        call(dw, o.place.stream)
        return wide.read(dw)
    return wide.result(call, shape[1:3])


def sums(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    out = o.fp32(a["before"].copy())
    k.column_sums(out, o.rows(a["x"]), shape[2], o.place.stream)
    return o.place.numpy(out).copy()


CASES = {
    "linear_backward_weight": Case(
        WEIGHTS,
        make_weight,
        weight_gradient,
        lambda t, s: t["dy"].T @ t["x"] + (t["before"] if s[3] else 0),
        training=True,
        gpu_shapes=GPU_WEIGHTS,
    ),
    "column_sums": Case(
        [(r, c, adds) for r, c in [*MATRICES, (1000, 70)] for adds in (False, True)],
        lambda rng, s: {"x": normal(rng, *s[:2]), "before": normal(rng, s[1])},
        sums,
        lambda t, s: t["x"].sum(0) + (t["before"] if s[2] else 0),
        fp32=("before",),
        training=True,
        gpu_shapes=((20_000, 768, False), (5000, 4096, True), (30_001, 33, True)),
    ),
}

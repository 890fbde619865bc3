"""linear_backward_weight, column_sums."""

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


def make_weight(rng: np.random.Generator, shape: tuple) -> Arrays:
    rows, out, inner = shape[:3]
    return {
        "dy": normal(rng, rows, out),
        "x": normal(rng, rows, inner),
        "before": normal(rng, out, inner),
    }


def weight_gradient(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    if shape[3]:
        dw = o.rows(a["before"].copy())
        k.linear_backward_weight(dw, o.rows(a["dy"]), o.rows(a["x"]), True, o.place.stream)
        return o.read(dw)
    return o.result(k.linear_backward_weight, shape[1:3], o.rows(a["dy"]), o.rows(a["x"]), False)


def sums(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    out = o.floats(a["before"].copy())
    k.column_sums(out, o.rows(a["x"]), shape[2], o.place.stream)
    return o.place.numpy(out).copy()


CASES = {
    "linear_backward_weight": Case(
        WEIGHTS,
        make_weight,
        weight_gradient,
        lambda t, s: t["dy"].T @ t["x"] + (t["before"] if s[3] else 0),
        training=True,
    ),
    "column_sums": Case(
        [(r, c, adds) for r, c in [*MATRICES, (1000, 70)] for adds in (False, True)],
        lambda rng, s: {"x": normal(rng, *s[:2]), "before": normal(rng, s[1])},
        sums,
        lambda t, s: t["x"].sum(0) + (t["before"] if s[2] else 0),
        training=True,
    ),
}

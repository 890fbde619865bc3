"""The op pool_backward."""

from __future__ import annotations

import torch
from fusewire import kernels as k

from tests.ops.case import Case, Tensors, normal
from tests.ops.rows import POOLINGS, pools


def gradient(t: Tensors, shape: tuple) -> torch.Tensor:
    x = t["x"].clone().requires_grad_()
    # max(0) gives the gradient to the first of equal values, amax splits it between them.
    pooled = {**POOLINGS, "max": lambda x: x.max(0).values}[shape[2]]
    out = torch.stack([pooled(rows) for rows in torch.split(x, list(shape[0]))])
    out.backward(t["dy"])
    return x.grad


CASES = {
    "pool_backward": Case(
        pools(((1,), 1), ((3, 1, 7), 33), ((128, 2), 384)),
        lambda rng, s: {"x": normal(rng, sum(s[0]), s[1]), "dy": normal(rng, len(s[0]), s[1])},
        lambda o, a, s: o.result(
            k.pool_backward,
            (sum(s[0]), s[1]),
            o.rows(a["dy"]),
            o.rows(a["x"]),
            o.sequences(s[0]),
            s[2],
        ),
        gradient,
        training=True,
        gpu_shapes=tuple(pools(((700, 1, 64, 3) * 20, 768))),
    ),
}

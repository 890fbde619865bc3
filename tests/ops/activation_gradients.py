"""The ops activate_backward and gate_backward."""

from __future__ import annotations

import torch
from fusewire import kernels as k

from tests.ops.activations import ACTIVATIONS
from tests.ops.case import MATRICES, Case, Tensors, normal

SHAPES = [(r, c, name) for r, c in MATRICES if c < 2000 for name in ACTIVATIONS]

LARGE = tuple((1000, 1024, name) for name in ACTIVATIONS)


def activated(x: torch.Tensor, shape: tuple) -> torch.Tensor:
    return ACTIVATIONS[shape[2]](x)


def gated(x: torch.Tensor, shape: tuple) -> torch.Tensor:
    return activated(x[:, : shape[1]], shape) * x[:, shape[1] :]


def gradient(forward, t: Tensors, shape: tuple) -> torch.Tensor:
    x = t["x"].clone().requires_grad_()
    # So that `none` has a gradient function too.
    (forward(x, shape) + 0 * x.sum()).backward(t["dy"])
    return x.grad


CASES = {
    "activate_backward": Case(
        SHAPES,
        lambda rng, s: {"x": normal(rng, *s[:2]) * 4, "dy": normal(rng, *s[:2])},
        lambda o, a, s: o.result(k.activate_backward, s[:2], o.rows(a["dy"]), o.rows(a["x"]), s[2]),
        lambda t, s: gradient(activated, t, s),
        training=True,
        gpu_shapes=LARGE,
    ),
    "gate_backward": Case(
        SHAPES,
        lambda rng, s: {"x": normal(rng, s[0], 2 * s[1]) * 3, "dy": normal(rng, *s[:2])},
        lambda o, a, s: o.result(
            k.gate_backward, (s[0], 2 * s[1]), o.rows(a["dy"]), o.rows(a["x"]), s[2]
        ),
        lambda t, s: gradient(gated, t, s),
        training=True,
        gpu_shapes=LARGE,
    ),
}

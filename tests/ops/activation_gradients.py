"""The ops activate_backward and gate_backward. The results of the first are dx, and below it the
sums of its columns if they are wanted."""

from __future__ import annotations

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.activations import ACTIVATIONS
from tests.ops.case import MATRICES, Arrays, Case, Operands, Tensors, normal
from tests.ops.norm_gradients import parameter_gradient

SHAPES = [(r, c, name) for r, c in MATRICES if c < 2000 for name in ACTIVATIONS]

LARGE = tuple((1000, 1024, name) for name in ACTIVATIONS)

# (rows, cols, activation, whether the sums are wanted, and added to what is there)
SUMMED = [
    *((*shape, False, False) for shape in SHAPES),
    *((r, c, "gelu_erf", True, adds) for r, c in [*MATRICES, (1000, 70)] for adds in (False, True)),
]
LARGE_SUMMED = (
    *((*shape, True, False) for shape in LARGE),
    (20_000, 768, "gelu_erf", True, True),
    (30_001, 33, "relu", True, False),
    (5000, 4096, "relu", False, False),
)


def activated(x: torch.Tensor, shape: tuple) -> torch.Tensor:
    return ACTIVATIONS[shape[2]](x)


def gated(x: torch.Tensor, shape: tuple) -> torch.Tensor:
    return activated(x[:, : shape[1]], shape) * x[:, shape[1] :]


def gradient(forward, t: Tensors, shape: tuple) -> torch.Tensor:
    x = t["x"].clone().requires_grad_()
    # So that `none` has a gradient function too.
    (forward(x, shape) + 0 * x.sum()).backward(t["dy"])
    return x.grad


def make(rng: np.random.Generator, shape: tuple) -> Arrays:
    size = shape[:2]
    return {
        "x": normal(rng, *size) * 4,
        "dy": normal(rng, *size),
        "before": normal(rng, shape[1]),
    }


def ours(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    activation, summed, accumulate = shape[2:]
    sums = parameter_gradient(o, a["before"], accumulate) if summed else None
    dx = o.result(
        lambda dx, stream: k.activate_backward(
            dx, sums, o.rows(a["dy"]), o.rows(a["x"]), activation, accumulate, stream
        ),
        shape[:2],
    )
    return np.concatenate([dx, o.place.numpy(sums)[None]]) if sums else dx


def reference(t: Tensors, shape: tuple) -> torch.Tensor:
    dx = gradient(activated, t, shape)
    if not shape[3]:
        return dx
    return torch.cat([dx, (dx.sum(0) + (t["before"] if shape[4] else 0))[None]])


CASES = {
    "activate_backward": Case(
        SUMMED, make, ours, reference, fp32=("before",), training=True, gpu_shapes=LARGE_SUMMED
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

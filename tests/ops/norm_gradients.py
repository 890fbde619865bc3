"""The ops layer_norm_backward, rms_norm_backward, rms_norm_heads_backward: dx, and below it the
rows of dweight and dbias."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors, normal
from tests.ops.norms import HEADS, rms


class Norm(NamedTuple):
    rows: int
    cols: int
    biased: bool = True
    residual: bool = True
    accumulate: bool = False


NORMS = [
    Norm(1, 1, residual=False),
    Norm(1, 7),
    Norm(5, 16, biased=False),
    Norm(3, 33, accumulate=True),
    Norm(17, 384, residual=False),
    Norm(9, 769, biased=False, accumulate=True),
    Norm(300, 100),
    Norm(2, 30522, biased=False),
    Norm(0, 8),
    Norm(0, 8, accumulate=True),
]

# Each way to hold a row: in the registers of one warp, of two warps and more, and not in registers.
LARGE_NORMS = (
    Norm(5000, 768),
    Norm(3001, 1024, residual=False),
    Norm(300, 2048, accumulate=True),
    Norm(70, 4096),
    Norm(141, 8192, biased=False),
    Norm(200, 9000),
    Norm(40, 1025),
    Norm(9, 5001, residual=False),
)


def make(rng: np.random.Generator, shape: Norm) -> Arrays:
    size = shape[:2]
    return {
        "x": normal(rng, *size) * 3 + 1,
        "dy": normal(rng, *size),
        "dresidual": normal(rng, *size),
        "weight": normal(rng, shape.cols),
        "dweight": normal(rng, shape.cols),
        "dbias": normal(rng, shape.cols),
    }


def parameter_gradient(o: Operands, before: np.ndarray, accumulate: bool) -> k.Tensor:
    """Returns a gradient buffer: `before` to accumulate to, otherwise NaN, which must be
    overwritten."""
    return o.fp32(before.copy() if accumulate else np.full_like(before, np.nan))


def ours(kernel: Callable) -> Callable[[Operands, Arrays, Norm], np.ndarray]:
    def run(o: Operands, a: Arrays, s: Norm) -> np.ndarray:
        outs = [parameter_gradient(o, a[name], s.accumulate) for name in ("dweight", "dbias")]
        biases = (outs[1] if s.biased else None,) if kernel is k.layer_norm_backward else ()
        dx = o.result(
            lambda dx, stream: kernel(
                dx,
                outs[0],
                *biases,
                o.rows(a["dy"]),
                o.rows(a["x"]),
                o.floats(a["weight"]),
                o.rows(a["dresidual"]) if s.residual else None,
                1e-5,
                s.accumulate,
                stream,
            ),
            (s.rows, s.cols),
        )
        kept = outs[: 1 + (biases != () and s.biased)]
        return np.concatenate([dx, *(o.place.numpy(out)[None] for out in kept)])

    return run


def gradients(norm: Callable, biased: bool) -> Callable[[Tensors, Norm], torch.Tensor]:
    def run(t: Tensors, s: Norm) -> torch.Tensor:
        x, weight = t["x"].clone().requires_grad_(), t["weight"].clone().requires_grad_()
        bias = torch.zeros_like(weight).requires_grad_()
        (norm(x, weight) + bias).backward(t["dy"])
        dx = x.grad + t["dresidual"] if s.residual else x.grad
        parameters = [(weight.grad, t["dweight"])]
        if biased and s.biased:
            parameters.append((bias.grad, t["dbias"]))
        sums = [new + before if s.accumulate else new for new, before in parameters]
        return torch.cat([dx, torch.stack(sums)])

    return run


# (tokens, heads, head_dim, accumulate)
def make_heads(rng: np.random.Generator, shape: tuple) -> Arrays:
    tokens, heads, dim = shape[:3]
    return {
        "x": normal(rng, tokens, heads * dim) * 3 + 1,
        "dy": normal(rng, tokens, heads * dim),
        "weight": normal(rng, dim),
        "dweight": normal(rng, dim),
    }


def heads_flat(dx: np.ndarray, dweight: np.ndarray, dim: int) -> np.ndarray:
    return np.concatenate([dx.reshape(-1, dim), dweight[None]])


def ours_of_heads(o: Operands, a: Arrays, s: tuple) -> np.ndarray:
    dx, dweight = o.rows(a["dy"].copy()), parameter_gradient(o, a["dweight"], s[3])
    k.rms_norm_heads_backward(
        dx, dweight, o.rows(a["x"]), o.floats(a["weight"]), 1e-6, s[3], o.place.stream
    )
    return heads_flat(o.read(dx), o.place.numpy(dweight), s[2])


def gradients_of_heads(t: Tensors, s: tuple) -> torch.Tensor:
    x = t["x"].reshape(-1, s[2]).clone().requires_grad_()
    weight = t["weight"].clone().requires_grad_()
    rms(x, weight).backward(t["dy"].reshape(-1, s[2]))
    return torch.cat([x.grad, (weight.grad + (t["dweight"] if s[3] else 0))[None]])


CASES = {
    "layer_norm_backward": Case(
        NORMS,
        make,
        ours(k.layer_norm_backward),
        gradients(lambda x, w: F.layer_norm(x, x.shape[1:], w, None, 1e-5), biased=True),
        training=True,
        gpu_shapes=LARGE_NORMS,
    ),
    "rms_norm_backward": Case(
        NORMS,
        make,
        ours(k.rms_norm_backward),
        gradients(
            lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w, biased=False
        ),
        training=True,
        gpu_shapes=LARGE_NORMS,
    ),
    "rms_norm_heads_backward": Case(
        [(*s, i % 2 == 1) for i, s in enumerate(HEADS)],
        make_heads,
        ours_of_heads,
        gradients_of_heads,
        training=True,
        gpu_shapes=((700, 32, 64, True), (300, 12, 128, False)),
    ),
}

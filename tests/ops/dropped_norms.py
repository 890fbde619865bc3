"""Dropout in the kernels of a norm. Results of dropout_add_layer_norm are `sum`, with `out` in the
rows below; those of layer_norm_dropout_backward are dx, then dz, dweight, dbias and sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors, normal
from tests.ops.dropout import kept
from tests.ops.norm_gradients import parameter_gradient


class DroppedNorm(NamedTuple):
    rows: int
    cols: int
    probability: float = 0.1
    biased: bool = True
    accumulate: bool = False
    summed: bool = True
    seed: int = 2**40 + 5
    offset: int = 3

    @property
    def dropout(self) -> tuple[float, int, int]:
        return self.probability, self.seed, self.offset


SHAPES = [
    DroppedNorm(1, 7, 0.5),
    DroppedNorm(5, 16, biased=False, summed=False),
    DroppedNorm(3, 33, 0.3, accumulate=True, seed=-1, offset=2**33 + 1),
    DroppedNorm(17, 384),
    DroppedNorm(9, 769, biased=False, accumulate=True),
    DroppedNorm(4, 100, 0.0),
    DroppedNorm(130, 256, accumulate=True),
    DroppedNorm(0, 7),
    DroppedNorm(2, 30522),
    DroppedNorm(0, 8, accumulate=True),
]
# Each way in which a row is held, as in norm_gradients.py.
LARGE = (
    DroppedNorm(3000, 768),
    DroppedNorm(1441, 1024, biased=False),
    DroppedNorm(1441, 768, summed=False, accumulate=True),
    DroppedNorm(2000, 512),
    DroppedNorm(700, 96),
    DroppedNorm(300, 2048, accumulate=True),
    DroppedNorm(70, 4096),
    DroppedNorm(141, 8192),
    DroppedNorm(200, 9000),
    DroppedNorm(40, 1025),
)


def make(rng: np.random.Generator, shape: DroppedNorm) -> Arrays:
    size = shape[:2]
    return {
        "x": normal(rng, *size) * 3 + 1,
        "residual": normal(rng, *size),
        "weight": normal(rng, shape.cols),
        "bias": normal(rng, shape.cols),
    }


def make_gradients(rng: np.random.Generator, shape: DroppedNorm) -> Arrays:
    names = ("dweight", "dbias", "sums")
    arrays = {**make(rng, shape), **{name: normal(rng, shape.cols) for name in names}}
    return arrays | {"dy": arrays.pop("residual")}


def dropped(x: torch.Tensor, s: DroppedNorm) -> torch.Tensor:
    mask = torch.from_numpy(kept(s.rows, s.cols, *s.dropout)).to(x.device)
    return torch.where(mask, x / (1 - s.probability), 0)


def normed(x: torch.Tensor, t: Tensors, s: DroppedNorm) -> torch.Tensor:
    return F.layer_norm(x, x.shape[1:], t["weight"], t["bias"] if s.biased else None, 1e-5)


def ours(o: Operands, a: Arrays, s: DroppedNorm) -> np.ndarray:
    total = o.room(s.rows, s.cols)
    out = o.result(
        k.dropout_add_layer_norm,
        (s.rows, s.cols),
        total,
        o.rows(a["x"]),
        o.rows(a["residual"]),
        o.floats(a["weight"]),
        o.floats(a["bias"]) if s.biased else None,
        1e-5,
        *s.dropout,
    )
    return np.concatenate([o.read(total), out])


def reference(t: Tensors, s: DroppedNorm) -> torch.Tensor:
    total = dropped(t["x"], s) + t["residual"]
    return torch.cat([total, normed(total, t, s)])


def our_gradients(o: Operands, a: Arrays, s: DroppedNorm) -> np.ndarray:
    names = ("dweight", "dbias", "sums")
    dweight, dbias, sums = (parameter_gradient(o, a[name], s.accumulate) for name in names)
    dbias, sums = dbias if s.biased else None, sums if s.summed else None
    dz = o.room(s.rows, s.cols)
    dx = o.result(
        k.layer_norm_dropout_backward,
        (s.rows, s.cols),
        dz,
        dweight,
        dbias,
        sums,
        o.rows(a["dy"]),
        o.rows(a["x"]),
        o.floats(a["weight"]),
        1e-5,
        *s.dropout,
        s.accumulate,
    )
    wanted = [out for out in (dweight, dbias, sums) if out]
    return np.concatenate([dx, o.read(dz), *(o.place.numpy(out)[None] for out in wanted)])


def gradients(t: Tensors, s: DroppedNorm) -> torch.Tensor:
    x, weight = (t[name].clone().requires_grad_() for name in ("x", "weight"))
    bias = t["bias"].clone().requires_grad_()
    F.layer_norm(x, x.shape[1:], weight, bias, 1e-5).backward(t["dy"])
    dz = dropped(x.grad, s)
    news = {"dweight": weight.grad}
    if s.biased:
        news["dbias"] = bias.grad
    if s.summed:
        news["sums"] = dz.sum(0)
    sums = [new + t[name] if s.accumulate else new for name, new in news.items()]
    return torch.cat([x.grad, dz, torch.stack(sums)])


CASES = {
    "dropout_add_layer_norm": Case(SHAPES, make, ours, reference, training=True, gpu_shapes=LARGE),
    "layer_norm_dropout_backward": Case(
        SHAPES, make_gradients, our_gradients, gradients, training=True, gpu_shapes=LARGE
    ),
}

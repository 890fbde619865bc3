"""The op cross_entropy: a row of losses above the gradient, or above the logits without a
gradient."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors, normal

IGNORED = -100


class Criterion(NamedTuple):
    rows: int
    cols: int
    smoothing: float = 0.0
    scaled: bool = False
    gradient: bool = True


SHAPES = [
    Criterion(1, 1),
    Criterion(5, 2, gradient=False),
    Criterion(17, 33, smoothing=0.1, scaled=True),
    Criterion(40, 384, scaled=True),
    Criterion(9, 770, smoothing=0.3, gradient=False),
    Criterion(3, 30522, smoothing=0.1),
    Criterion(0, 8),
]

LARGE = (
    Criterion(3000, 9, smoothing=0.1),
    Criterion(200, 5003, scaled=True),
    Criterion(140, 32768, smoothing=0.1),
    Criterion(140, 40480, scaled=True),
    Criterion(33, 40480, gradient=False),
    Criterion(20, 256_001, smoothing=0.1, scaled=True),
)


def make(rng: np.random.Generator, shape: Criterion) -> Arrays:
    labels = rng.integers(0, shape.cols, shape.rows)
    labels[2::5] = IGNORED
    return {
        "logits": normal(rng, shape.rows, shape.cols) * 5 + 3,
        "labels": labels,
        "scale": np.float32([0.25]),
    }


def losses_and_logits(o: Operands, a: Arrays, s: Criterion) -> np.ndarray:
    logits, losses = o.rows(a["logits"].copy()), o.fp32(np.full(s.rows, np.nan, np.float32))
    k.cross_entropy(
        losses,
        logits,
        o.int64(a["labels"]),
        IGNORED,
        s.smoothing,
        o.fp32(a["scale"]) if s.scaled else None,
        s.gradient,
        o.place.stream,
    )
    return columns(o.place.numpy(losses), o.read(logits))


def columns(losses: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Puts the losses in a row of their own, as tolerances scale with rows."""
    padded = np.zeros((1, max(len(losses), logits.shape[1])), np.float64)
    padded[0, : len(losses)] = losses
    wide = np.zeros((len(logits), padded.shape[1]), np.float64)
    wide[:, : logits.shape[1]] = logits
    return np.concatenate([padded, wide])


def reference(t: Tensors, s: Criterion) -> torch.Tensor:
    z = t["logits"].clone().requires_grad_()
    losses = F.cross_entropy(
        z, t["labels"], ignore_index=IGNORED, label_smoothing=s.smoothing, reduction="none"
    )
    losses.sum().backward()
    of_scale = t["scale"] if s.scaled else 1.0
    after = z.grad * of_scale if s.gradient else t["logits"]
    width = max(s.rows, s.cols)
    return torch.cat(
        [F.pad(losses.detach()[None], (0, width - s.rows)), F.pad(after, (0, width - s.cols))]
    )


CASES = {
    "cross_entropy": Case(
        SHAPES, make, losses_and_logits, reference, training=True, gpu_shapes=LARGE
    ),
}

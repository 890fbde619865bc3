"""The ops norm_linear and activated_linear: GEMMs whose input rows are computed just before."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels as k

from tests.ops.activations import ACTIVATIONS
from tests.ops.case import Arrays, Case, Operands, Tensors, normal
from tests.ops.gemm import packed
from tests.ops.norms import rms

# (tokens, in_features, out_features, whether the norm is centered, activation)
NORMED = [
    (1, 1, 1, True, "none"),
    (7, 384, 65, True, "gelu_erf"),
    (33, 31, 97, False, "none"),
    (16, 770, 33, False, "silu"),
    (0, 8, 8, True, "none"),
]
# (tokens, in_features, out_features, activation, whether it is gated)
ACTIVATED = [
    (1, 1, 1, "gelu_erf", False),
    (15, 384, 65, "gelu_erf", False),
    (33, 31, 97, "silu", True),
    (16, 770, 33, "gelu_tanh", True),
    (5, 40, 8, "relu", False),
    (0, 8, 8, "tanh", False),
]


def make_normed(rng: np.random.Generator, shape: tuple) -> Arrays:
    m, kk, n = shape[:3]
    return {
        "x": normal(rng, m, kk) * 3 + 1,
        "norm_weight": normal(rng, kk),
        "norm_bias": normal(rng, kk),
        "weight": normal(rng, n, kk) / np.float32(np.sqrt(kk)),
        "bias": normal(rng, n),
    }


def normed(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    m, kk, n, centered, activation = shape
    given = o.floats(a["norm_bias"]) if centered else None
    return o.result(
        k.norm_linear, (m, n), o.room(m, kk), o.rows(a["x"]), o.floats(a["norm_weight"]), given,
        1e-5, centered, packed(o, a), activation,
    )  # fmt: skip


def normed_reference(t: Tensors, shape: tuple) -> torch.Tensor:
    kk, centered, activation = shape[1], shape[3], shape[4]
    x, weight = t["x"], t["norm_weight"]
    rows = F.layer_norm(x, (kk,), weight, t["norm_bias"], 1e-5) if centered else rms(x, weight)
    return ACTIVATIONS[activation](F.linear(rows, t["weight"], t["bias"]))


def make_activated(rng: np.random.Generator, shape: tuple) -> Arrays:
    m, kk, n, _, gated = shape
    return {
        "x": normal(rng, m, 2 * kk if gated else kk),
        "weight": normal(rng, n, kk) / np.float32(np.sqrt(kk)),
        "bias": normal(rng, n),
        "residual": normal(rng, m, n),
    }


def activated(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    m, _, n, activation, gated = shape
    return o.result(
        k.activated_linear, (m, n), o.rows(a["x"].copy()), activation, gated, packed(o, a),
        o.rows(a["residual"]),
    )  # fmt: skip


def activated_reference(t: Tensors, shape: tuple) -> torch.Tensor:
    kk, activation, gated = shape[1], shape[3], shape[4]
    rows = ACTIVATIONS[activation](t["x"][:, :kk])
    rows = rows * t["x"][:, kk:] if gated else rows
    return F.linear(rows, t["weight"], t["bias"]) + t["residual"]


CASES = {
    "norm_linear": Case(
        NORMED,
        make_normed,
        normed,
        normed_reference,
        gpu_shapes=((613, 768, 2304, True, "none"), (64, 4096, 520, False, "none")),
    ),
    "activated_linear": Case(
        ACTIVATED,
        make_activated,
        activated,
        activated_reference,
        gpu_shapes=((613, 3072, 768, "gelu_erf", False), (64, 1152, 520, "silu", True)),
    ),
}

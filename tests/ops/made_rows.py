"""The ops norm_linear, activated_linear and gated_linear: GEMMs with the op just before or after
them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels as k

from tests.ops.activations import ACTIVATIONS
from tests.ops.case import Arrays, Case, Operands, Tensors, normal
from tests.ops.gemm import BERT_TOKENS, biased, packed
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
# (tokens, in_features, outputs, activation[, whether there is a bias])
GATED = [
    (1, 1, 1, "silu"),
    (7, 384, 64, "silu"),
    (33, 31, 97, "gelu_erf"),
    (16, 770, 33, "gelu_tanh", False),
    (5, 40, 8, "relu", False),
    (0, 8, 8, "none"),
]
# ModernBERT-base, a decoder, and widths that no tile divides, with and without groups of 8.
GATED_GPU = [(768, 1152, "gelu_erf", False), (1024, 2816, "silu", False), (256, 104, "silu"),
             (136, 500, "silu"), (72, 2056, "gelu_tanh")]  # fmt: skip


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


def make_gated(rng: np.random.Generator, shape: tuple) -> Arrays:
    """a is near 2 and b near 1. Products of two normal numbers would have a few that are twenty
    times as large as most, and errors are measured in units of most."""
    m, kk, n = shape[:3]
    x, bias = normal(rng, m, kk), normal(rng, 2 * n) / 4
    weight = normal(rng, 2 * n, kk) / np.float32(4 * np.sqrt(kk))
    x[:, -1], weight[:n, -1], weight[n:, -1] = 1, 2, 1
    return {"x": x, "weight": weight, "bias": bias}


def gated(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    m, _, n, activation = shape[:4]
    linear = o.place.linear(a["weight"], a["bias"] if biased(shape) else None)
    both = o.room(m, 2 * n)
    return o.result(k.gated_linear, (m, n), both, o.rows(a["x"]), linear, activation)


def gated_reference(t: Tensors, shape: tuple) -> torch.Tensor:
    n, activation = shape[2:4]
    both = F.linear(t["x"], t["weight"], t["bias"] if biased(shape) else None)
    return ACTIVATIONS[activation](both[:, :n]) * both[:, n:]


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
    "gated_linear": Case(
        GATED,
        make_gated,
        gated,
        gated_reference,
        gpu_shapes=tuple((m, *sizes) for m in BERT_TOKENS for sizes in GATED_GPU),
    ),
}

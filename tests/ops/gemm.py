"""The ops linear and linear_add."""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from fusewire import kernels as k

from tests.ops.activations import ACTIVATIONS
from tests.ops.case import Arrays, Case, Operands, normal

# (tokens, in_features, out_features, activation[, whether there is a bias])
LINEARS = [
    (1, 1, 1, "none"),
    (1, 64, 33, "gelu_erf"),
    (7, 384, 1152, "none"),
    (15, 31, 65, "relu"),
    (16, 768, 768, "tanh"),
    (113, 100, 97, "silu"),
    (230, 3072, 48, "gelu_tanh"),
    (0, 8, 8, "none"),
]
# BERT-base, from one token to a number of tokens that no tile divides.
BERT_TOKENS = (1, 7, 64, 129, 613)
BERT_LINEARS = [(768, 2304, "none"), (768, 3072, "gelu_erf")]
# A head: no bias, and a vocabulary that no tile divides.
HEADS = [(768, 1003, "none", False), (1024, 515, "none", False)]
# Shapes whose last columns are computed by a separate GEMM.
WIDE = [(64, 4101, "none"), (64, 4101, "none", False), (72, 8195, "gelu_erf")]
BERT_RESIDUALS = [(768, 768, "none"), (3072, 768, "none"), (64, 4101, "none")]


def make(rng: np.random.Generator, shape: tuple) -> Arrays:
    m, kk, n = shape[:3]
    return {
        "x": normal(rng, m, kk),
        "weight": normal(rng, n, kk) / np.float32(np.sqrt(kk)),
        "bias": normal(rng, n),
        "residual": normal(rng, m, n),
    }


def packed(o: Operands, a: Arrays, shape: tuple = ()) -> k.Linear:
    return o.place.linear(a["weight"], a["bias"] if biased(shape) else None)


def biased(shape: tuple) -> bool:
    return shape[4:] != (False,)


CASES = {
    "linear": Case(
        LINEARS,
        make,
        lambda o, a, s: o.result(k.linear, (s[0], s[2]), o.rows(a["x"]), packed(o, a, s), s[3]),
        lambda t, s: ACTIVATIONS[s[3]](
            F.linear(t["x"], t["weight"], t["bias"] if biased(s) else None)
        ),
        gpu_shapes=tuple((m, *sizes) for m in BERT_TOKENS for sizes in BERT_LINEARS + HEADS + WIDE),
    ),
    "linear_add": Case(
        LINEARS,
        make,
        lambda o, a, s: o.result(
            k.linear_add, (s[0], s[2]), o.rows(a["x"]), packed(o, a), o.rows(a["residual"])
        ),
        lambda t, s: F.linear(t["x"], t["weight"], t["bias"]) + t["residual"],
        gpu_shapes=tuple((m, *sizes) for m in BERT_TOKENS for sizes in BERT_RESIDUALS),
    ),
}

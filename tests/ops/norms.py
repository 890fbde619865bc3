"""layer_norm, rms_norm, both after an addition or an embedding."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels as k

from tests.ops.case import LARGE_MATRICES, MATRICES, Arrays, Case, Operands, normal


def make_norm(rng: np.random.Generator, shape: tuple) -> Arrays:
    return {
        "x": normal(rng, *shape) * 3 + 1,
        "residual": normal(rng, *shape),
        "weight": normal(rng, shape[1]),
        "bias": normal(rng, shape[1]),
    }


def make_embedding(rng: np.random.Generator, shape: tuple) -> Arrays:
    tokens, hidden = shape
    return {
        "ids": rng.integers(0, 50, tokens),
        "positions": rng.integers(0, 40, tokens, dtype=np.int32),
        "types": rng.integers(0, 2, tokens, dtype=np.int32),
        "word": normal(rng, 50, hidden),
        "position": normal(rng, 40, hidden),
        "token_type": normal(rng, 2, hidden),
        "weight": normal(rng, hidden),
        "bias": normal(rng, hidden),
    }


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def embedded(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    return o.result(
        k.embed_layer_norm,
        shape,
        o.int64(a["ids"]),
        o.int32(a["positions"]),
        o.int32(a["types"]),
        *(o.floats(a[name]) for name in ("word", "position", "token_type", "weight", "bias")),
        1e-12,
    )


CASES = {
    "layer_norm": Case(
        MATRICES,
        make_norm,
        lambda o, a, s: o.result(
            k.layer_norm, s, o.rows(a["x"]), o.floats(a["weight"]), o.floats(a["bias"]), 1e-12
        ),
        lambda t, s: F.layer_norm(t["x"], s[1:], t["weight"], t["bias"], 1e-12),
        gpu_shapes=LARGE_MATRICES,
    ),
    "add_layer_norm": Case(
        MATRICES,
        make_norm,
        lambda o, a, s: o.result(
            k.add_layer_norm,
            s,
            o.rows(a["x"]),
            o.rows(a["residual"]),
            o.floats(a["weight"]),
            None,
            1e-5,
        ),
        lambda t, s: F.layer_norm(t["x"] + t["residual"], s[1:], t["weight"], None, 1e-5),
        gpu_shapes=LARGE_MATRICES,
    ),
    "rms_norm": Case(
        MATRICES,
        make_norm,
        lambda o, a, s: o.result(k.rms_norm, s, o.rows(a["x"]), o.floats(a["weight"]), 1e-6),
        lambda t, s: rms(t["x"], t["weight"]),
        gpu_shapes=LARGE_MATRICES,
    ),
    "add_rms_norm": Case(
        MATRICES,
        make_norm,
        lambda o, a, s: o.result(
            k.add_rms_norm, s, o.rows(a["x"]), o.rows(a["residual"]), o.floats(a["weight"]), 1e-6
        ),
        lambda t, s: rms(t["x"] + t["residual"], t["weight"]),
        gpu_shapes=LARGE_MATRICES,
    ),
    "embed_layer_norm": Case(
        [s for s in MATRICES if s[1] < 2000],
        make_embedding,
        embedded,
        lambda t, s: F.layer_norm(
            t["word"][t["ids"]]
            + t["token_type"][t["types"].long()]
            + t["position"][t["positions"].long()],
            s[1:],
            t["weight"],
            t["bias"],
            1e-12,
        ),
        gpu_shapes=LARGE_MATRICES,
    ),
}

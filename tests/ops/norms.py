"""The ops layer_norm and rms_norm, with addition, after an embedding and of heads; embed."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels as k

from tests.ops.case import LARGE_MATRICES, MATRICES, Arrays, Case, Operands, Tensors, normal


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


# (tokens, heads, head_dim)
HEADS = [(1, 1, 1), (3, 5, 64), (40, 8, 80), (2, 3, 33), (0, 2, 8)]


def make_heads(rng: np.random.Generator, shape: tuple) -> Arrays:
    tokens, heads, dim = shape
    return {"x": normal(rng, tokens, heads * dim) * 3 + 1, "weight": normal(rng, dim)}


def norm_heads(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    x = o.rows(a["x"].copy())
    k.rms_norm_heads(x, o.floats(a["weight"]), 1e-6, o.place.stream)
    return o.read(x)


SCALE = 2.5


def looked_up(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    positioned = shape[2]
    return o.result(
        k.embed,
        shape[:2],
        o.int64(a["ids"]),
        o.int32(a["positions"]) if positioned else None,
        o.floats(a["word"]),
        o.floats(a["position"]) if positioned else None,
        SCALE,
    )


def look_up(t: Tensors, shape: tuple) -> torch.Tensor:
    rows = t["word"][t["ids"]] * SCALE
    return rows + t["position"][t["positions"].long()] if shape[2] else rows


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
    "rms_norm": Case(
        MATRICES,
        make_norm,
        lambda o, a, s: o.result(k.rms_norm, s, o.rows(a["x"]), o.floats(a["weight"]), 1e-6),
        lambda t, s: rms(t["x"], t["weight"]),
        gpu_shapes=LARGE_MATRICES,
    ),
    "rms_norm_add": Case(
        MATRICES,
        make_norm,
        lambda o, a, s: o.result(
            k.rms_norm_add, s, o.rows(a["x"]), o.rows(a["residual"]), o.floats(a["weight"]), 1e-6
        ),
        lambda t, s: rms(t["x"], t["weight"]) + t["residual"],
        gpu_shapes=LARGE_MATRICES,
    ),
    "rms_norm_heads": Case(
        HEADS,
        make_heads,
        norm_heads,
        lambda t, s: rms(t["x"].view(s[0], s[1], s[2]), t["weight"]).reshape(s[0], s[1] * s[2]),
        gpu_shapes=((613, 32, 128), (64, 8, 256), (2000, 16, 64)),
    ),
    "embed": Case(
        [(*s, positioned) for s in MATRICES if s[1] < 2000 for positioned in (True, False)],
        lambda rng, s: make_embedding(rng, s[:2]),
        looked_up,
        look_up,
        gpu_shapes=((613, 768, True), (70, 4096, False)),
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

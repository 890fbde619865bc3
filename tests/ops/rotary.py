"""The op rotary."""

from __future__ import annotations

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.attention import HEAD_DIMS
from tests.ops.case import Arrays, Case, Operands, Tensors, normal

# (tokens, heads, kv_heads, head_dim, rotary_dim)
ROTARIES = [
    (1, 1, 1, 2, 2),
    (5, 3, 3, 64, 64),
    (40, 2, 2, 80, 80),
    (0, 1, 1, 4, 4),
    (7, 8, 2, 64, 64),
    (9, 4, 1, 80, 20),
    (3, 2, 2, 33, 6),
]


def make_rotary(rng: np.random.Generator, shape: tuple) -> Arrays:
    tokens, heads, kv_heads, dim, rotary_dim = shape
    angles = np.outer(np.arange(50), 100.0 ** -(np.arange(rotary_dim // 2) / (rotary_dim // 2)))
    return {
        "qkv": normal(rng, tokens, (heads + 2 * kv_heads) * dim),
        "positions": rng.integers(0, 50, tokens, dtype=np.int32),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }


def rotated(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    qkv = o.rows(a["qkv"].copy())
    cos, sin = o.fp32(a["cos"]), o.fp32(a["sin"])
    k.rotary(qkv, o.int32(a["positions"]), cos, sin, *shape[1:3], o.place.stream)
    return o.read(qkv)


def rotate(t: Tensors, shape: tuple) -> torch.Tensor:
    tokens, heads, kv_heads, dim, rotary_dim = shape
    x = t["qkv"].view(tokens, heads + 2 * kv_heads, dim)
    cos, sin = (t[name][t["positions"].long()][:, None, :] for name in ("cos", "sin"))
    half, rotated = rotary_dim // 2, heads + kv_heads
    a, b = x[:, :rotated, :half], x[:, :rotated, half:rotary_dim]
    head = torch.cat([a * cos - b * sin, b * cos + a * sin, x[:, :rotated, rotary_dim:]], -1)
    return torch.cat([head, x[:, rotated:]], 1).reshape(tokens, (heads + 2 * kv_heads) * dim)


CASES = {
    "rotary": Case(
        ROTARIES,
        make_rotary,
        rotated,
        rotate,
        fp32=("cos", "sin"),
        gpu_shapes=(
            *((613, 12, 12, dim, dim) for dim in HEAD_DIMS),
            (613, 32, 8, 128, 128),
            (64, 16, 16, 96, 24),
        ),
    ),
}

"""attention."""

from __future__ import annotations

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors, normal

# (lengths, heads, head_dim, window, with a position bias)
ATTENTIONS = [
    ((1,), 1, 1, 0, False),
    ((1, 2, 3), 2, 8, 0, False),
    ((33, 1, 16, 64), 12, 32, 0, False),
    ((127, 128, 129), 3, 64, 0, True),
    ((40, 5), 2, 80, 0, True),
    ((700,), 1, 96, 0, False),
    ((300, 17), 2, 128, 64, False),
    ((513, 90), 2, 20, 3, False),
]
LONG_ATTENTION = ((8192,), 1, 64, 0, False)

HEAD_DIMS = (32, 64, 80, 96, 128)
RAGGED_256 = tuple(int(n) for n in np.random.default_rng(7).integers(1, 97, 256))
RAGGED_16 = tuple(int(n) for n in np.random.default_rng(0).integers(102, 513, 16))
GPU_ATTENTIONS = (
    *(((1000, 1, 63, 257, 2, 130), 4, dim, 0, False) for dim in HEAD_DIMS),
    *(((200, 2, 31), 3, dim, 16, True) for dim in HEAD_DIMS),
    (RAGGED_256, 12, 64, 0, False),
    (RAGGED_16, 12, 64, 0, False),
    ((5, 64, 17), 3, 64, 0, False),
    ((128, 100), 4, 64, 0, False),
    ((1,) * 256, 2, 32, 0, False),
    ((513,), 12, 64, 0, True),
    ((512, 128, 384), 16, 64, 0, False),
    ((8192, 1, 4097), 2, 64, 0, False),
    ((8192, 77), 2, 64, 64, False),
    ((2049, 5), 2, 128, 0, False),
)


def make_attention(rng: np.random.Generator, shape: tuple) -> Arrays:
    lengths, heads, dim = shape[:3]
    span = max(lengths) + 3
    return {
        "qkv": normal(rng, sum(lengths), 3 * heads * dim) * 2,
        "bias": normal(rng, heads, 2 * span - 1),
    }


def attended(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    lengths, heads, dim, window, biased = shape
    return o.result(
        k.attention,
        (sum(lengths), heads * dim),
        o.rows(a["qkv"]),
        o.sequences(lengths),
        heads,
        dim**-0.5,
        window,
        o.fp32(a["bias"]) if biased else None,
    )


def attend(t: Tensors, shape: tuple) -> torch.Tensor:
    lengths, heads, dim, window, biased = shape
    span = (t["bias"].shape[1] + 1) // 2
    outs = []
    for qkv in torch.split(t["qkv"], list(lengths)):
        n = len(qkv)
        q, key, v = qkv.view(n, 3, heads, dim).permute(1, 2, 0, 3)
        order = torch.arange(n, device=qkv.device)
        distance = order[None, :] - order[:, None]
        scores = q @ key.transpose(-1, -2) / dim**0.5
        if biased:
            scores = scores + t["bias"][:, distance + span - 1]
        if window:
            scores = scores.masked_fill(distance.abs() > window, float("-inf"))
        outs.append((scores.softmax(-1) @ v).transpose(0, 1).reshape(n, heads * dim))
    return torch.cat(outs)


CASES = {
    "attention": Case(
        ATTENTIONS, make_attention, attended, attend, fp32=("bias",), gpu_shapes=GPU_ATTENTIONS
    ),
}

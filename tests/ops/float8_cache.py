"""A KV cache in float8 e4m3, rounded as torch does, and the reference of attention over its
codes."""

from __future__ import annotations

import numpy as np
import torch
from fusewire.weights.quantized.weight import float8_e4m3

from tests.ops.case import Arrays, Operands
from tests.ops.paged import Cache, Paged

LARGEST = 448.0


def codes(numbers: np.ndarray, scale: float) -> np.ndarray:
    """Returns the codes of numbers / scale, saturated to 448."""
    quotients = (torch.from_numpy(numbers) / scale).clamp(-LARGEST, LARGEST)
    return quotients.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def meant(numbers: np.ndarray, scale: float) -> np.ndarray:
    """Returns the values of their codes, in fp64."""
    return float8_e4m3()[codes(numbers, scale)].astype(np.float64) * scale


class Float8Cache(Cache):
    def __init__(
        self, o: Operands, a: Arrays, shape: Paged, scales: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        super().__init__(o, a, shape)
        self.scales = scales
        self.keys, self.values = (
            o.place.exact(codes(o.place.numpy(plane), scale), np.uint8)
            for plane, scale in zip((self.keys, self.values), scales, strict=True)
        )


def attended(o: Operands, a: Arrays, shape: Paged, scales: tuple[float, float]) -> np.ndarray:
    cache = Float8Cache(o, a, shape, scales)
    qkv, out = o.rows(a["qkv"]), o.room(sum(shape.added), shape.heads * shape.dim)
    cache.store(qkv)
    cache.attend(out, qkv)
    return o.read(out)


def rounded_to_float8(a: Arrays, shape: Paged, scales: tuple[float, float]) -> Arrays:
    """Returns the arrays of a test with keys and values as the cache holds them, in fp64."""
    q_width, width = shape.heads * shape.dim, shape.kv_heads * shape.dim
    qkv, past = (a[name].astype(np.float64) for name in ("qkv", "past"))
    for part, scale in enumerate(scales):
        new, old = (slice(at + part * width, at + (part + 1) * width) for at in (q_width, 0))
        qkv[:, new] = meant(a["qkv"][:, new], scale)
        past[:, old] = meant(a["past"][:, old], scale)
    return {**a, "qkv": qkv, "past": past}

"""The op cached_attention: what a decoder's layer does between its GEMMs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors
from tests.ops.paged import (
    FEW_SIMILAR,
    MANY,
    ONE_LONG,
    SIMILAR,
    Cache,
    Paged,
    attend,
    decoding,
    make_paged,
    prompts,
)
from tests.ops.rotary import rotate


class Added(NamedTuple):
    """New tokens, and the number of rotated elements of a head (0: none)."""

    paged: Paged
    rotary_dim: int

    @property
    def positions(self) -> np.ndarray:
        ranges = zip(self.paged.past, self.paged.contexts, strict=True)
        return np.concatenate([np.arange(*both, dtype=np.int32) for both in ranges])


ADDED = [
    Added(decoding(1, 2, 33, 40, dim=8, page_size=4), 8),
    Added(decoding(300, 31, 32, 1025, heads=3, kv_heads=3), 0),
    Added(decoding(1, 31, 32, 33, 128, heads=3, kv_heads=3, biased=True), 0),
    Added(decoding(511, 512, 513, heads=4, kv_heads=2, page_size=32), 16),
    Added(decoding(700, 9, heads=4, kv_heads=1, dim=128, left=299, soft_cap=5.0), 128),
    # Several new tokens of one sequence, across the border of a tile of keys and of a page.
    Added(Paged((4, 1, 3), (34, 700, 513), heads=4, kv_heads=1, dim=128), 128),
    Added(Paged((8, 5, 1), (260, 5, 1), heads=4, kv_heads=2, dim=64, biased=True), 0),
    # More rows than one kernel takes.
    Added(prompts(40, 7, heads=4, kv_heads=2, dim=64), 64),
    Added(Paged((1, 30), (500, 90), heads=2, kv_heads=2, dim=80), 20),
]
GPU_ADDED = (
    Added(decoding(1024, heads=32, kv_heads=8, dim=128), 128),
    Added(
        decoding(*(int(n) for n in np.random.default_rng(6).integers(1, 2100, 64)), heads=12), 64
    ),
    Added(decoding(32768, 5000, heads=8, kv_heads=1, dim=128, page_size=64), 128),
    Added(decoding(1024, 1, 333, heads=16, kv_heads=16, dim=256), 64),
    Added(MANY, 128),
    Added(ONE_LONG, 0),
    Added(SIMILAR, 128),
    Added(FEW_SIMILAR, 128),
    Added(Paged((16, 2, 16), (1000, 2000, 16), heads=2, kv_heads=2, dim=256), 256),
)

# The last of them has no past in the cache: attention reads the keys and values from the input
# rows.
GPU_PROMPTS = (
    Added(prompts(300, 65, 2, 128, heads=8, kv_heads=2, dim=128), 128),
    Added(prompts(1024, heads=32, kv_heads=8, dim=128), 128),
    Added(Paged((1, 1, 30, 300, 65), (500, 90, 400, 300, 65), heads=4, kv_heads=2, dim=128), 64),
    Added(Paged((1, 130, 200, 1), (1, 131, 200, 1), heads=6, kv_heads=3, left=99), 64),
    Added(Paged((1,) * 40 + (513,), (*range(1, 41), 513), heads=4, kv_heads=4), 0),
)


def make_added(rng: np.random.Generator, shape: Added) -> Arrays:
    half = shape.rotary_dim // 2
    frequencies = 100.0 ** -(np.arange(half) / max(half, 1))
    angles = np.outer(np.arange(max(shape.paged.contexts)), frequencies)
    return {
        **make_paged(rng, shape.paged),
        "positions": shape.positions,
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }


class Step:
    """A step on its own cache, by the fused op or by separate ops."""

    def __init__(
        self, o: Operands, a: Arrays, shape: Added, cache: Callable[..., Cache] = Cache
    ) -> None:
        self.o, self.shape = o, shape
        self.cache = cache(o, a, shape.paged)
        self.qkv = o.rows(a["qkv"].copy())
        self.out = o.room(sum(shape.paged.added), shape.paged.heads * shape.paged.dim)
        tables = o.int32(a["positions"]), o.fp32(a["cos"]), o.fp32(a["sin"])
        self.rotary = tables if shape.rotary_dim else (None, None, None)

    def at_once(self) -> np.ndarray:
        k.cached_attention(
            self.out,
            self.qkv,
            self.cache.keys,
            self.cache.values,
            self.cache.batch,
            self.cache.spec,
            self.cache.bias,
            *self.rotary,
            self.o.place.stream,
        )
        return self.answer()

    def part_by_part(self) -> np.ndarray:
        s = self.shape.paged
        if self.shape.rotary_dim:
            k.rotary(self.qkv, *self.rotary, s.heads, s.kv_heads, self.o.place.stream)
        self.cache.store(self.qkv)
        self.cache.attend(self.out, self.qkv)
        return self.answer()

    def answer(self) -> np.ndarray:
        """Returns the output, and the new tokens' keys and values in the cache."""
        return np.concatenate([self.o.read(self.out), self.cache.new_rows()], 1)


def reference(t: Tensors, shape: Added) -> torch.Tensor:
    p = shape.paged
    rotated = (sum(p.added), p.heads, p.kv_heads, p.dim, shape.rotary_dim)
    qkv = rotate(t, rotated) if shape.rotary_dim else t["qkv"]
    return torch.cat([attend({**t, "qkv": qkv}, p), qkv[:, p.heads * p.dim :]], 1)


CASES = {
    "cached_attention": Case(
        ADDED,
        make_added,
        lambda o, a, shape: Step(o, a, shape).at_once(),
        reference,
        fp32=("bias", "cos", "sin"),
        gpu_shapes=(*GPU_ADDED, *GPU_PROMPTS),
    ),
}

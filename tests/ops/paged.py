"""The ops store_kv, paged_attention and copy_pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.attention import BIAS_SPAN, masked_scores, spec_of
from tests.ops.case import Arrays, Case, Operands, Tensors, normal


class Paged(NamedTuple):
    """Sequences of `contexts` positions, the last `added` of which are new; by default causal."""

    added: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int = 2
    kv_heads: int = 2
    dim: int = 64
    page_size: int = 16
    left: int = k.UNLIMITED
    right: int = 0
    soft_cap: float = 0.0
    biased: bool = False

    @property
    def width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.dim

    @property
    def past(self) -> list[int]:
        return [c - n for c, n in zip(self.contexts, self.added, strict=True)]


def decoding(*contexts: int, **options) -> Paged:
    return Paged((1,) * len(contexts), contexts, **options)


def prompts(*lengths: int, **options) -> Paged:
    return Paged(lengths, lengths, **options)


PAGED = [
    decoding(1, heads=1, kv_heads=1, dim=1, page_size=1),
    decoding(1, 2, 3, 40, dim=8, page_size=4),
    decoding(511, 512, 513, 1025, heads=3, kv_heads=3),
    decoding(130, 700, heads=8, kv_heads=2, dim=80, page_size=32),
    decoding(77, 1100, heads=9, kv_heads=1, dim=20, page_size=8),
    decoding(300, 1030, heads=4, dim=128, left=599),
    decoding(200, 9, heads=4, kv_heads=2, left=4, soft_cap=3.0),
    decoding(90, 600, heads=4, kv_heads=4, dim=32, biased=True),
    decoding(1, 31, 32, 33, 100, 128, heads=3, kv_heads=3),
    decoding(90, 20, heads=4, kv_heads=4, left=17, biased=True),
    decoding(32, 5, heads=1, kv_heads=1, page_size=4, right=k.UNLIMITED),
    decoding(1, 31, 32, 33, 100, 128, heads=3, kv_heads=3, right=k.UNLIMITED),
    decoding(8, 5, 1, page_size=1, right=k.UNLIMITED),
    prompts(1, 17, 126, 130, heads=3, kv_heads=3),
    prompts(40, 300, heads=6, kv_heads=2, dim=80, page_size=4),
    prompts(200, 33, heads=4, kv_heads=1, left=19, page_size=64, soft_cap=5.0),
    prompts(150, heads=2, kv_heads=2, dim=20, biased=True, page_size=1),
    prompts(513, 6, heads=2, kv_heads=1, dim=96, left=128),
    decoding(90, 600, heads=4, kv_heads=2, left=30, right=10),
    prompts(200, 33, heads=4, kv_heads=2, right=k.UNLIMITED, soft_cap=5.0),
    prompts(130, 9, heads=2, kv_heads=1, dim=128, left=40, right=7, biased=True),
    # Chunks of prompts, and decoding sequences.
    Paged((1, 5, 60, 3), (200, 5, 300, 700), heads=4, kv_heads=2, page_size=8),
    Paged((33, 8, 1, 2), (800, 520, 1, 1027), heads=2, kv_heads=1, dim=20, left=89, biased=True),
]
# More than a GPU attends to at once: all are whole, and one is divided.
MANY = decoding(*range(130, 260), heads=16, kv_heads=8, dim=128)
ONE_LONG = decoding(*range(30, 130), 6000, *range(1, 30), heads=16, kv_heads=8, dim=128)
# Contexts of similar length, of which an H200 attends to 3 parts each at once, and to 4.
SIMILAR = decoding(*range(1000, 1016), heads=16, kv_heads=8, dim=128)
FEW_SIMILAR = decoding(*range(1020, 1030), heads=16, kv_heads=8, dim=128)
GPU_PAGED = (
    decoding(*(int(n) for n in np.random.default_rng(5).integers(1, 2100, 64)), heads=12),
    decoding(*range(1, 128), *range(127, 0, -1), heads=8, kv_heads=8, right=k.UNLIMITED),
    *(decoding(1024, 1, 333, heads=32, kv_heads=8, dim=dim) for dim in (64, 80, 96, 128, 256)),
    decoding(32768, 5000, heads=8, kv_heads=1, dim=128, page_size=64),
    decoding(8192, heads=16, kv_heads=8, dim=128, left=4095, soft_cap=50.0),
    MANY,
    ONE_LONG,
    SIMILAR,
    FEW_SIMILAR,
    prompts(1024, 1, 513, heads=8, kv_heads=2, dim=128),
    prompts(700, 64, heads=12, kv_heads=12, dim=64),
    prompts(300, 257, heads=4, kv_heads=1, dim=256, left=99, soft_cap=50.0),
    Paged((512, 1, 100), (4096, 4096, 612), heads=8, kv_heads=2, dim=128),
)


def make_paged(rng: np.random.Generator, shape: Paged) -> Arrays:
    return {
        "qkv": normal(rng, sum(shape.added), shape.width) * 2,
        # k | v of every position before the new ones, sequence after sequence
        "past": normal(rng, sum(shape.past), 2 * shape.kv_heads * shape.dim) * 2,
        "bias": normal(rng, shape.heads, 2 * BIAS_SPAN - 1),
    }


class Cache:
    """Pages in random order, with NaN at positions that were not stored."""

    scales = (1.0, 1.0)  # of keys and of values, for float8

    def __init__(self, o: Operands, a: Arrays, shape: Paged, seed: int = 1) -> None:
        self.o, self.shape = o, shape
        self.bias = o.fp32(a["bias"]) if shape.biased else None
        size = shape.page_size
        counts = [-(-c // size) for c in shape.contexts]
        pages = sum(counts) + 3
        order = np.random.default_rng(seed).permutation(pages).astype(np.int32)
        self.table = np.full((len(counts), max(counts) + 1), -1, np.int32)
        for row, count, begin in zip(self.table, counts, np.cumsum([0, *counts]), strict=False):
            row[:count] = order[begin : begin + count]
        planes = np.full((2, pages, shape.kv_heads, size, shape.dim), np.nan, np.float32)
        parts = np.split(a["past"], np.cumsum(shape.past)[:-1])
        for sequence, part in enumerate(parts):
            for position, row in enumerate(part.reshape(len(part), 2, shape.kv_heads, shape.dim)):
                planes[:, *self.at(sequence, position)] = row
        self.keys, self.values = o.floats(planes[0].copy()), o.floats(planes[1].copy())
        self.read(self.table)

    def read(self, table: np.ndarray) -> None:
        """Uses the pages of this table from now on."""
        self.table = table
        self.batch = k.PagedBatch(
            self.o.sequences(self.shape.added),
            k.Tensor.from_numpy(np.array(self.shape.contexts, np.int32)),
            k.Tensor.from_numpy(table),
            self.shape.page_size,
            self.o.place.stream,
        )

    @property
    def spec(self) -> k.AttentionSpec:
        k_scale, v_scale = self.scales
        return spec_of(self.shape, k_scale=k_scale, v_scale=v_scale)

    def at(self, sequence: int, position: int) -> tuple:
        size = self.shape.page_size
        return self.table[sequence, position // size], slice(None), position % size

    def store(self, qkv: k.Tensor) -> None:
        s = self.shape
        q_width, width = s.heads * s.dim, s.kv_heads * s.dim
        new = qkv.columns(q_width, width), qkv.columns(q_width + width, width)
        k.store_kv(self.keys, self.values, *new, self.batch, *self.scales, self.o.place.stream)

    def attend(self, out: k.Tensor, qkv: k.Tensor, log_sum_exp: k.Tensor | None = None) -> None:
        s = self.shape
        k.paged_attention(
            out,
            qkv.columns(0, s.heads * s.dim),
            self.keys,
            self.values,
            self.batch,
            self.spec,
            self.bias,
            log_sum_exp,
            self.o.place.stream,
        )

    def new_rows(self) -> np.ndarray:
        """Returns k | v of the new positions, as the cache holds them."""
        planes = [self.o.place.numpy(plane) for plane in (self.keys, self.values)]
        rows = [
            [plane[self.at(sequence, position)].reshape(-1) for plane in planes]
            for sequence, (past, context) in enumerate(
                zip(self.shape.past, self.shape.contexts, strict=True)
            )
            for position in range(past, context)
        ]
        return np.array(rows).reshape(len(rows), -1)


def stored(o: Operands, a: Arrays, shape: Paged) -> np.ndarray:
    cache = Cache(o, a, shape)
    cache.store(o.rows(a["qkv"]))
    return cache.new_rows()


def attended(o: Operands, a: Arrays, shape: Paged) -> np.ndarray:
    cache = Cache(o, a, shape)
    qkv, out = o.rows(a["qkv"]), o.room(sum(shape.added), shape.heads * shape.dim)
    cache.store(qkv)
    cache.attend(out, qkv)
    return o.read(out)


def sequences(t: Tensors, shape: Paged) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yields q [heads, new, dim], k and v [heads, context, dim] of each sequence."""
    group = shape.heads // shape.kv_heads
    for qkv, past in zip(
        torch.split(t["qkv"], list(shape.added)), torch.split(t["past"], shape.past), strict=True
    ):
        q = qkv[:, : shape.heads * shape.dim].reshape(len(qkv), shape.heads, shape.dim)
        kv = torch.cat([past, qkv[:, shape.heads * shape.dim :]])
        key, value = kv.view(len(kv), 2, shape.kv_heads, shape.dim).permute(1, 2, 0, 3)
        yield q.transpose(0, 1), key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)


def attend(t: Tensors, shape: Paged) -> torch.Tensor:
    outs = []
    for q, key, value in sequences(t, shape):
        weights = masked_scores(q, key, shape, t.get("bias")).softmax(-1)
        outs.append((weights @ value).transpose(0, 1).flatten(1))
    return torch.cat(outs)


class Copies(NamedTuple):
    planes: int
    pages: int
    heads: int
    elements: int  # of a head
    leading: int
    count: int


COPIES = [
    Copies(1, 4, 1, 1, 1, 1),
    Copies(3, 9, 3, 11, 11, 4),
    Copies(3, 9, 3, 11, 4, 4),
    Copies(2, 40, 2, 512, 96, 20),
    Copies(2, 6, 5, 512, 512, 2),
    Copies(2, 6, 5, 512, 0, 2),
    Copies(4, 3, 1, 8, 8, 0),
]


def make_copies(rng: np.random.Generator, shape: Copies) -> Arrays:
    pages, count = shape.pages, shape.count
    order = rng.permutation(pages)
    return {
        "cache": normal(rng, shape.planes, pages, shape.heads, shape.elements),
        # A source may be copied twice.
        "from": order[rng.integers(0, max(pages - count, 1), count)],
        "to": order[pages - count :],
    }


def copied(o: Operands, a: Arrays, shape: Copies) -> np.ndarray:
    cache = o.floats(a["cache"].copy())
    k.copy_pages(cache, o.int64(a["from"]), o.int64(a["to"]), shape.leading, o.place.stream)
    return o.place.numpy(cache).copy()


def copy(t: Tensors, shape: Copies) -> torch.Tensor:
    cache = t["cache"].clone()
    cache[:, t["to"], :, : shape.leading] = cache[:, t["from"], :, : shape.leading]
    return cache


CASES = {
    "store_kv": Case(
        PAGED,
        make_paged,
        stored,
        lambda t, s: t["qkv"][:, s.heads * s.dim :],
        exact=True,
        gpu_shapes=GPU_PAGED,
    ),
    "paged_attention": Case(
        PAGED, make_paged, attended, attend, fp32=("bias",), gpu_shapes=GPU_PAGED
    ),
    "copy_pages": Case(
        COPIES,
        make_copies,
        copied,
        copy,
        exact=True,
        gpu_shapes=(Copies(24, 500, 12, 16 * 64, 7 * 64, 100),),
    ),
}

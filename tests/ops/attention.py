"""The op attention."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors, normal
from tests.ops.philox import dropout_factors

BIAS_SPAN = 60
"""Of a bias: distances of this many tokens or more share one."""

DROPOUT = {"dropout_seed": -7 * 2**40 + 5, "dropout_offset": 9 * 2**32 + 14}
"""With numbers in all four words of 32 bits."""


class Attention(NamedTuple):
    lengths: tuple[int, ...]  # number of queries of each sequence
    heads: int
    dim: int
    kv_heads: int = 0  # 0: the same as heads
    key_lengths: tuple[int, ...] = ()  # empty: the keys are those of the queries' own tokens
    left: int = k.UNLIMITED
    right: int = k.UNLIMITED
    soft_cap: float = 0.0
    biased: bool = False
    dropout: float = 0.0

    @property
    def keys(self) -> tuple[int, ...]:
        return self.key_lengths or self.lengths

    @property
    def kv_width(self) -> int:
        return (self.kv_heads or self.heads) * self.dim


def window(each_side: int) -> dict[str, int]:
    return {"left": each_side, "right": each_side}


CAUSAL: dict[str, int] = {"right": 0}

ATTENTIONS = [
    Attention((1,), 1, 1),
    Attention((1, 2, 3), 2, 8),
    Attention((33, 1, 16, 64), 12, 32),
    Attention((127, 128, 129), 3, 64, biased=True),
    Attention((40, 5), 2, 80, biased=True),
    Attention((700,), 1, 96),
    Attention((300, 17), 2, 128, **window(64)),
    Attention((513, 90), 2, 20, **window(3)),
    Attention((300, 17, 1), 2, 64, left=0, right=5),
    Attention((150, 260), 2, 32, left=130, right=0, soft_cap=2.0),
    Attention((130, 1), 4, 64, kv_heads=2, **CAUSAL),
    Attention((90, 200), 6, 80, kv_heads=1, soft_cap=4.0, biased=True),
    Attention((9, 40, 1), 2, 64, key_lengths=(200, 3, 129)),
    Attention((70, 5), 4, 32, kv_heads=2, key_lengths=(40, 300), soft_cap=3.0, biased=True),
    Attention((20, 130), 2, 64, key_lengths=(150, 130), **CAUSAL),
    Attention((33, 4), 2, 128, key_lengths=(300, 10), left=20, right=2, biased=True),
]
LONG_ATTENTION = Attention((8192,), 1, 64)

HEAD_DIMS = (32, 64, 80, 96, 128)
RAGGED_256 = tuple(int(n) for n in np.random.default_rng(7).integers(1, 97, 256))
RAGGED_16 = tuple(int(n) for n in np.random.default_rng(0).integers(102, 513, 16))
GPU_ATTENTIONS = (
    *(Attention((1000, 1, 63, 257, 2, 130), 4, dim) for dim in HEAD_DIMS),
    *(Attention((200, 2, 31), 3, dim, biased=True, **window(16)) for dim in HEAD_DIMS),
    *(Attention((500, 1, 63, 257), 4, dim, kv_heads=2) for dim in (*HEAD_DIMS, 256)),
    *(
        Attention((63, 300, 1), 4, dim, kv_heads=2, key_lengths=(500, 40, 257), soft_cap=5.0)
        for dim in (*HEAD_DIMS, 256)
    ),
    *(Attention((400, 33), 2, dim, **CAUSAL) for dim in (64, 128, 256)),
    *(Attention((1, 63, 64, 65, 127, 128, 129, 500), 2, dim, **CAUSAL) for dim in (64, 128)),
    *(Attention((70, 300, 9), 4, dim, 2, (300, 250, 200), **window(90)) for dim in (64, 128)),
    Attention((60, 20), 4, 64, kv_heads=2),
    Attention(RAGGED_256, 12, 64),
    Attention(RAGGED_16, 12, 64),
    Attention((5, 64, 17), 3, 64),
    Attention((128, 100), 4, 64),
    Attention((1,) * 256, 2, 32),
    Attention((513,), 12, 64, biased=True),
    Attention((512, 128, 384), 16, 64),
    Attention((8192, 1, 4097), 2, 64),
    Attention((8192, 77), 2, 64, **window(64)),
    Attention((2049, 5), 2, 128),
)


def make_attention(rng: np.random.Generator, shape: Attention) -> Arrays:
    arrays = {
        "q": normal(rng, sum(shape.lengths), shape.heads * shape.dim) * 2,
        "bias": normal(rng, shape.heads, 2 * BIAS_SPAN - 1),
    }
    # k | v are columns of one matrix, as in a layer
    return {**arrays, "kv": normal(rng, sum(shape.keys), 2 * shape.kv_width) * 2}


def spec_of(shape: Any, **more: Any) -> k.AttentionSpec:
    """Returns the specification of a shape with heads, dim, left, right and soft_cap."""
    return k.AttentionSpec(
        heads=shape.heads,
        scale=shape.dim**-0.5,
        left=shape.left,
        right=shape.right,
        soft_cap=shape.soft_cap,
        **more,
    )


class Operation:
    """The op on arrays of a shape; q | k | v are columns of one matrix where they have the same
    rows."""

    def __init__(self, o: Operands, a: Arrays, shape: Attention) -> None:
        self.o, self.shape = o, shape
        width, kv_width = shape.heads * shape.dim, shape.kv_width
        self.queries = self.keys = o.sequences(shape.lengths)
        if shape.key_lengths:
            self.keys = o.sequences(shape.keys)
            self.q, kv = o.rows(a["q"]), o.rows(a["kv"])
            first = 0
        else:
            kv = o.rows(np.concatenate([a["q"], a["kv"]], 1))
            self.q, first = kv.columns(0, width), width
        self.k, self.v = kv.columns(first, kv_width), kv.columns(first + kv_width, kv_width)
        self.bias = o.fp32(a["bias"]) if shape.biased else None

    def __call__(
        self,
        out: k.Tensor,
        log_sum_exp: k.Tensor | None = None,
        stream: k.Stream | None = None,
        spec: k.AttentionSpec | None = None,
    ) -> None:
        k.attention(
            out,
            self.q,
            self.k,
            self.v,
            self.queries,
            self.keys,
            spec or spec_of(self.shape, **{"dropout": self.shape.dropout, **DROPOUT}),
            self.bias,
            log_sum_exp,
            stream or self.o.place.stream,
        )


def attended(o: Operands, a: Arrays, shape: Attention) -> np.ndarray:
    return o.result(Operation(o, a, shape), (sum(shape.lengths), shape.heads * shape.dim))


def masked_scores(
    q: torch.Tensor, key: torch.Tensor, shape: Any, bias: torch.Tensor
) -> torch.Tensor:
    """Returns the scores [heads, n, m] of q[heads, n, dim] and key[heads, m, dim], with -inf where
    they are masked."""
    n, m = q.shape[1], key.shape[1]
    scores = q @ key.transpose(-1, -2) * shape.dim**-0.5
    if shape.soft_cap:
        scores = shape.soft_cap * torch.tanh(scores / shape.soft_cap)
    order = torch.arange(m, device=q.device)
    distance = order - (torch.arange(n, device=q.device) + m - n)[:, None]  # key - query
    if shape.biased:
        most = bias.shape[1] // 2
        scores = scores + bias[:, distance.clamp(-most, most) + most]
    return scores.masked_fill((-distance > shape.left) | (distance > shape.right), float("-inf"))


def sequences(t: Tensors, shape: Attention) -> list[tuple[torch.Tensor, ...]]:
    """Returns q[heads, n, dim], k and v[heads, m, dim] of each sequence."""
    kv_heads = shape.kv_heads or shape.heads
    rows, key_rows = np.cumsum([0, *shape.lengths]), np.cumsum([0, *shape.keys])
    found = []
    for (begin, end), (first, last) in zip(pairwise(rows), pairwise(key_rows), strict=True):
        q = t["q"][begin:end].view(end - begin, shape.heads, shape.dim).transpose(0, 1)
        kv = t["kv"][first:last].view(last - first, 2, kv_heads, shape.dim).permute(1, 2, 0, 3)
        found.append((q, *kv.repeat_interleave(shape.heads // kv_heads, 1)))
    return found


def kept_weights(shape: Attention, token: int, n: int, m: int) -> np.ndarray:
    """Returns the dropout factors [heads, n, m] of the weights of n queries, the first of which is
    `token` (csrc/core/dropout.h)."""
    rows = np.arange(token * shape.heads, (token + n) * shape.heads)
    seed, offset = DROPOUT.values()
    factors = dropout_factors(rows, np.arange(m), shape.dropout, seed, offset)
    return factors.reshape(n, shape.heads, m).transpose(1, 0, 2)


def attend(t: Tensors, shape: Attention) -> torch.Tensor:
    outs, token = [], 0
    for q, key, value in sequences(t, shape):
        weights = masked_scores(q, key, shape, t.get("bias")).softmax(-1)
        if shape.dropout:
            weights = weights * torch.from_numpy(kept_weights(shape, token, *weights.shape[1:])).to(
                weights
            )
        outs.append((weights @ value).transpose(0, 1).flatten(1))
        token += q.shape[1]
    return torch.cat(outs)


def log_sum_exps(t: Tensors, shape: Attention) -> torch.Tensor:
    """Returns the log-sum-exp of the scores, [heads, queries]."""
    scores = [masked_scores(q, key, shape, t.get("bias")) for q, key, _ in sequences(t, shape)]
    return torch.cat([each.logsumexp(-1) for each in scores], 1)


CASES = {
    "attention": Case(
        ATTENTIONS, make_attention, attended, attend, fp32=("bias",), gpu_shapes=GPU_ATTENTIONS
    ),
}

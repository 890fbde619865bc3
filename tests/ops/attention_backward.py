"""The op attention_backward."""

from __future__ import annotations

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.attention import (
    CAUSAL,
    DROPOUT,
    Attention,
    Operation,
    attend,
    make_attention,
    spec_of,
    window,
)
from tests.ops.case import Arrays, Case, Operands, Tensors, normal

# A query that sees one key has gradient 0, which no error can be relative to: where dq has its own
# rows (key_lengths) every query sees several keys.
SHAPES = [
    Attention((1,), 1, 1),
    Attention((1, 2, 3), 2, 8),
    Attention((33, 1, 16, 64), 12, 32),
    Attention((5, 128, 30), 3, 64),
    Attention((127, 129), 2, 64, biased=True),
    Attention((300,), 1, 96, dropout=0.2),
    Attention((300, 17), 2, 128, **window(64)),
    Attention((270, 90), 2, 20, **window(3)),
    Attention((150, 17, 1), 2, 64, left=0, right=5, dropout=0.5),
    Attention((150, 260), 2, 32, left=130, right=0, soft_cap=2.0),
    Attention((130, 1), 4, 64, kv_heads=2, dropout=0.1, **CAUSAL),
    Attention((90, 200), 6, 80, kv_heads=1, soft_cap=4.0, biased=True),
    Attention((9, 40, 2), 2, 64, key_lengths=(200, 7, 129)),
    Attention((70, 5), 4, 32, kv_heads=2, key_lengths=(40, 300), soft_cap=3.0, biased=True),
    Attention((20, 130), 2, 64, key_lengths=(150, 140), dropout=0.3, **CAUSAL),
    Attention((33, 4), 2, 128, key_lengths=(300, 10), left=20, right=2, biased=True, dropout=0.1),
]


def make_gradients(rng: np.random.Generator, shape: Attention) -> Arrays:
    """Returns inputs with scores of the order of 1: where one key has all of the weight, the
    gradients of q and k are differences of equal numbers, and a relative error has no meaning."""
    made = {n: a / 2 if n in ("q", "kv") else a for n, a in make_attention(rng, shape).items()}
    return {**made, "dout": normal(rng, *made["q"].shape)}


def rows_of(parts: list[np.ndarray]) -> np.ndarray:
    """Concatenates matrices vertically, each padded with zeros to the largest width."""
    width = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts])


class Backward:
    """The op after its forward pass; dq | dk | dv are columns of one matrix where they have the
    same rows."""

    def __init__(self, o: Operands, a: Arrays, shape: Attention) -> None:
        self.o, self.shape, self.forward = o, shape, Operation(o, a, shape)
        queries, width = a["q"].shape
        self.dout, self.out = o.rows(a["dout"]), o.room(queries, width)
        sums = (shape.heads, queries)
        fp32 = o.place.dtype == "float32"
        self.log_sum_exp = o.room(*sums) if fp32 else o.fp32(np.full(sums, np.nan, np.float32))
        self.forward(self.out, self.log_sum_exp)
        self.dbias = o.fp32(np.full_like(a["bias"], np.nan)) if shape.biased else None

    def __call__(self, dq: k.Tensor, dkv: k.Tensor, stream: k.Stream | None = None) -> None:
        f, width = self.forward, self.shape.kv_width
        k.attention_backward(
            dq,
            dkv.columns(0, width),
            dkv.columns(width, width),
            self.dbias,
            self.dout,
            self.out,
            f.q,
            f.k,
            f.v,
            f.queries,
            f.keys,
            spec_of(self.shape, **{"dropout": self.shape.dropout, **DROPOUT}),
            f.bias,
            self.log_sum_exp,
            stream or self.o.place.stream,
        )

    def results(self) -> list[np.ndarray]:
        """Returns dq | dk | dv, or dq and dk | dv; and dbias."""
        o, (queries, width), kv_width = self.o, self.out.shape, 2 * self.shape.kv_width

        def together(dqkv: k.Tensor, stream: k.Stream) -> None:
            self(dqkv.columns(0, width), dqkv.columns(width, kv_width), stream)

        if not self.shape.key_lengths:
            parts = [o.result(together, (queries, width + kv_width))]
        else:
            dq, dkv = (queries, width), (sum(self.shape.keys), kv_width)
            parts = [
                o.result(lambda dq, stream: self(dq, o.room(*dkv), stream), dq),
                o.result(lambda dkv, stream: self(o.room(*dq), dkv, stream), dkv),
            ]
        return parts if self.dbias is None else [*parts, o.place.numpy(self.dbias).copy()]


def gradients(o: Operands, a: Arrays, shape: Attention) -> np.ndarray:
    return rows_of(Backward(o, a, shape).results())


def reference(t: Tensors, shape: Attention) -> torch.Tensor:
    leaves = {name: t[name].detach().requires_grad_() for name in ("q", "kv", "bias")}
    (attend(leaves, shape) * t["dout"]).sum().backward()
    dq, dkv, dbias = (leaf.grad for leaf in leaves.values())
    parts = [dq, dkv] if shape.key_lengths else [torch.cat([dq, dkv], 1)]
    if shape.biased:
        parts.append(dbias)
    found = [part.double().cpu().numpy() for part in parts]
    return torch.from_numpy(rows_of(found)).to(t["q"].dtype)


CASES = {
    "attention_backward": Case(
        SHAPES, make_gradients, gradients, reference, fp32=("bias",), training=True
    ),
}

"""Attention in training, bf16: TFLOP/s of the forward pass that saves what the backward pass needs,
and of the backward pass, of the matrix products over real tokens (half of them where it is causal).

Rivals, as shipped with torch: FlashAttention-2 varlen, and for equal lengths cuDNN through SDPA.
They accumulate in any order, so gradients of two runs differ; ours are bitwise equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.own import launches, view
from benchmarks.gpu.timing import Contender, medians_ms, torch_launches
from benchmarks.records import Rows

DTYPE = torch.bfloat16
Pass = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    name: str
    lengths: tuple[int, ...]
    heads: int
    head_dim: int
    causal: bool
    dropout: float = 0.0

    def flops(self, products: int) -> int:
        pairs = sum(n * n for n in self.lengths)
        return 2 * products * pairs * self.heads * self.head_dim // (2 if self.causal else 1)


def _between(least: int, most: int, sequences: int) -> tuple[int, ...]:
    return tuple(int(n) for n in np.random.default_rng(0).integers(least, most + 1, sequences))


CASES = (
    Case("12x64 causal 8 x 1024", (1024,) * 8, 12, 64, True),
    Case("12x64 causal 8 x 1024, dropout 0.1", (1024,) * 8, 12, 64, True, 0.1),
    Case("12x64 causal 2 x 4096", (4096,) * 2, 12, 64, True),
    Case("12x64 128 x 20..128", _between(20, 128, 128), 12, 64, False),
    Case("12x64 128 x 20..128, dropout 0.1", _between(20, 128, 128), 12, 64, False, 0.1),
    Case("12x64 32 x 100..512", _between(100, 512, 32), 12, 64, False),
    Case("16x128 causal 4 x 2048", (2048,) * 4, 16, 128, True),
    Case("16x128 32 x 100..512", _between(100, 512, 32), 16, 128, False),
)


def run(options: argparse.Namespace, facts: dict[str, Any]) -> Iterator[Rows]:
    torch.manual_seed(0)
    stream = kernels.Stream("cuda")
    for case in CASES:
        tokens, width = sum(case.lengths), case.heads * case.head_dim
        qkv = torch.randn(tokens, 3, case.heads, case.head_dim, device="cuda", dtype=DTYPE)
        dout = torch.randn(tokens, width, device="cuda", dtype=DTYPE)
        sides = [_own(case, qkv, dout, stream), *_rivals(case, qkv, dout)]
        for which, products in (("forward", 2), ("backward", 5)):
            ms = medians_ms([side[which] for side in sides], rounds=5, turn_ms=6.0)
            best = min((n for n in ms if n != "fusewire"), key=lambda n: ms[n])
            yield [
                {
                    **facts,
                    "benchmark": "attention_training",
                    "case": f"{case.name}, {which}",
                    "dtype": "bfloat16",
                    "system": system,
                    "us": round(value * 1e3, 2),
                    "tflops": round(case.flops(products) / value * 1e-9, 1),
                    "best_rival": best,
                    "times_best_rival": round(ms[best] / value, 3),
                }
                for system, value in ms.items()
            ]


def _own(case: Case, qkv: Tensor, dout: Tensor, stream: kernels.Stream) -> dict[str, Contender]:
    offsets = np.concatenate([[0], np.cumsum(case.lengths)]).astype(np.int32)
    batch = kernels.SequenceBatch(kernels.Tensor.from_numpy(offsets), stream)
    width = dout.shape[1]
    thirds = [view(qkv.flatten(1)).columns(i * width, width) for i in range(3)]
    gradients = view(torch.empty_like(qkv.flatten(1)))
    parts = [gradients.columns(i * width, width) for i in range(3)]
    out, sums = view(torch.empty_like(dout)), view(qkv.new_empty(case.heads, len(qkv)).float())
    spec = kernels.AttentionSpec(
        heads=case.heads,
        scale=case.head_dim**-0.5,
        right=0 if case.causal else kernels.UNLIMITED,
        dropout=case.dropout,
        dropout_seed=1,
    )
    rest = (batch, batch, spec, None, sums, stream)
    forward = partial(kernels.attention, out, *thirds, *rest)
    backward = partial(kernels.attention_backward, *parts, None, view(dout), out, *thirds, *rest)
    forward()
    return {
        "forward": launches("fusewire", stream, [forward]),
        "backward": launches("fusewire", stream, [backward]),
    }


def _rivals(case: Case, qkv: Tensor, dout: Tensor) -> list[dict[str, Contender]]:
    passes = {"FlashAttention-2 varlen": _flash(case, qkv, dout)}
    if len(set(case.lengths)) == 1:
        passes["cuDNN SDPA"] = _cudnn(case, qkv, dout)
    # Autograd runs the backward pass on the stream of the forward pass, on which it would
    # have to be captured.
    here = torch.cuda.current_stream()
    return [
        {"forward": torch_launches(name, [forward]), "backward": Contender(name, backward, here)}
        for name, (forward, backward) in passes.items()
    ]


def _flash(case: Case, qkv: Tensor, dout: Tensor) -> tuple[Pass, Pass]:
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(case.lengths)]), dtype=torch.int32).cuda()
    longest, rows = max(case.lengths), qkv.unbind(1)
    shape = (offsets, offsets, longest, longest, case.dropout, case.causal)
    forward = partial(torch.ops.aten._flash_attention_forward, *rows, *shape, False)
    out, sums, *state = forward()[:4]
    gradient = dout.view_as(out)
    return forward, partial(
        torch.ops.aten._flash_attention_backward, gradient, *rows, out, sums, *shape, *state
    )


def _cudnn(case: Case, qkv: Tensor, dout: Tensor) -> tuple[Pass, Pass]:
    count = len(case.lengths)
    q, k, v = (
        part.unflatten(0, (count, -1)).transpose(1, 2).detach().requires_grad_()
        for part in qkv.unbind(1)
    )
    gradient = dout.view(count, -1, case.heads, case.head_dim).transpose(1, 2)

    def forward() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(
                q, k, v, dropout_p=case.dropout, is_causal=case.causal
            )

    with torch.enable_grad():
        out = forward()
    return forward, partial(torch.autograd.grad, out, (q, k, v), gradient, retain_graph=True)

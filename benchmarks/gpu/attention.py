"""Attention over about 16k packed tokens, fp16: TFLOP/s of the matrix products over real tokens.

Lengths are full (all S) or ragged (uniform in 0.2 S..S). Rivals, as shipped with torch:
FlashAttention-2 varlen, and cuDNN, for full lengths through SDPA and for ragged ones by offsets.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu import cudnn_ragged
from benchmarks.gpu.own import launches, view
from benchmarks.gpu.timing import Contender, medians_ms, torch_launches
from benchmarks.records import Rows

TOKENS = 16384
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
HEADS = ((12, 64), (16, 128))  # heads, head_dim
SETS = 3  # of qkv, together larger than the L2 cache

Attend = Callable[[Tensor], Tensor]  # qkv [tokens, 3, heads, head_dim] -> [tokens, heads * dim]


def sequence_lengths(longest: int, *, full: bool) -> list[int]:
    if full:
        return [longest] * (TOKENS // longest)
    rng = np.random.default_rng(0)
    found: list[int] = []
    while sum(found) < TOKENS:
        found.append(int(rng.integers(int(0.2 * longest), longest + 1)))
    found[-1] -= sum(found) - TOKENS
    return found


def run(options: argparse.Namespace, facts: dict[str, Any]) -> Iterator[Rows]:
    torch.manual_seed(0)
    stream = kernels.Stream("cuda")
    for heads, dim in HEADS:
        for full in (True, False):
            for longest in LENGTHS:
                lengths = sequence_lengths(longest, full=full)
                rows = _measure(lengths, heads, dim, full, stream, facts)
                name = f"{heads}x{dim} {longest} {'full' if full else 'ragged'}"
                yield [{**facts, "benchmark": "attention", "case": name, **row} for row in rows]


def _measure(
    lengths: list[int],
    heads: int,
    dim: int,
    full: bool,
    stream: kernels.Stream,
    facts: dict[str, Any],
) -> Rows:
    shape = (sum(lengths), 3, heads, dim)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(SETS)]
    out = torch.empty(shape[0], heads * dim, device="cuda", dtype=torch.float16)
    wanted = _reference(inputs[-1], lengths)
    differences: dict[str, float] = {}
    sides: list[Contender] = [_own(inputs, out, lengths, heads, dim, stream)]
    torch.cuda.synchronize()
    differences["fusewire"] = float((out - wanted).abs().max())
    for name, attend in _rivals(lengths, full).items():
        differences[name] = float((attend(inputs[-1]) - wanted).abs().max())
        sides.append(torch_launches(name, [partial(attend, each) for each in inputs]))
    ms = medians_ms(sides, rounds=5, turn_ms=6.0)
    parts: dict[str, float] = {}
    if not full:  # for full lengths cuDNN's dense call is as good
        difference = float((cudnn_ragged.attend(inputs[-1], lengths) - wanted).abs().max())
        differences["cuDNN ragged"] = difference
        parts = cudnn_ragged.kernels_us(inputs, lengths)
        ms["cuDNN ragged"] = sum(parts.values()) * 1e-3
    flops = 4 * sum(n * n for n in lengths) * heads * dim
    best = min((n for n in ms if n != "fusewire"), key=lambda n: ms[n])
    return [
        {
            "longest": max(lengths),
            "sequences": len(lengths),
            "heads": heads,
            "head_dim": dim,
            "dtype": "float16",
            "system": system,
            "us": round(value * 1e3, 2),
            "tflops": round(flops / value * 1e-9, 1),
            "best_rival": best,
            "times_best_rival": round(ms[best] / value, 3),
            "max_abs_difference": differences[system],
            "cudnn_kernels_us": parts,
        }
        for system, value in ms.items()
    ]


def _own(
    inputs: list[Tensor],
    out: Tensor,
    lengths: list[int],
    heads: int,
    dim: int,
    stream: kernels.Stream,
) -> Contender:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    batch = kernels.SequenceBatch(kernels.Tensor.from_numpy(offsets), stream)
    target = view(out)
    sources = [view(each.flatten(1)) for each in inputs]
    spec, width = kernels.AttentionSpec(heads=heads, scale=dim**-0.5), heads * dim
    calls = [
        partial(
            kernels.attention,
            target,
            *(each.columns(i * width, width) for i in range(3)),
            batch,
            batch,
            spec,
            None,
            None,
            stream,
        )
        for each in sources
    ]
    return launches("fusewire", stream, calls)


def _rivals(lengths: list[int], full: bool) -> dict[str, Attend]:
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32).cuda()
    longest = max(lengths)

    def flash(qkv: Tensor) -> Tensor:
        q, k, v = qkv.unbind(1)
        found = torch.ops.aten._flash_attention_forward(
            q, k, v, offsets, offsets, longest, longest, 0.0, False, False
        )
        return found[0].flatten(1)

    def cudnn(qkv: Tensor) -> Tensor:
        q, k, v = (part.unflatten(0, (-1, longest)).transpose(1, 2) for part in qkv.unbind(1))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).flatten(0, 1)

    found: dict[str, Attend] = {"FlashAttention-2 varlen": flash}
    return found | ({"cuDNN SDPA": cudnn} if full else {})


def _reference(qkv: Tensor, lengths: list[int]) -> Tensor:
    """Returns attention in fp32, computed one sequence after the other."""
    found = []
    for part in qkv.float().split(lengths):
        q, k, v = (each.transpose(0, 1) for each in part.unbind(1))
        with sdpa_kernel(SDPBackend.MATH):
            found.append(F.scaled_dot_product_attention(q[None], k[None], v[None])[0])
    return torch.cat([each.transpose(0, 1) for each in found]).flatten(1)

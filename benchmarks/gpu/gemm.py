"""BERT's GEMMs in fp16, with bias and, in the first of the feed-forward, erf GELU: TFLOP/s.

Weights rotate: in a model each layer has its own, so they are never in the L2 cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fusewire import kernels
from torch import Tensor

from benchmarks.gpu.own import launches, view
from benchmarks.gpu.timing import medians_ms, torch_launches
from benchmarks.gpu.workload import SIZES
from benchmarks.records import Rows

TOKENS = (32, 128, 613, 1232, 2471, 4939, 9880, 19902)  # row counts of the encoders' grid
ROTATED_BYTES = 160 << 20  # more than the 60 MB of L2
MOST_SETS = 48


def shapes() -> dict[str, tuple[int, int, str]]:
    """Returns out_features, in_features and activation by name."""
    found = {}
    for key, size in SIZES.items():
        h, inner = size.hidden, size.intermediate
        found[f"{key} qkv"] = (3 * h, h, "none")
        found[f"{key} attention output"] = (h, h, "none")
        found[f"{key} intermediate"] = (inner, h, "gelu_erf")
        found[f"{key} output"] = (h, inner, "none")
    return found


def run(options: argparse.Namespace, facts: dict[str, Any]) -> Iterator[Rows]:
    torch.manual_seed(0)
    stream = kernels.Stream("cuda")
    for name, (n, k, activation) in shapes().items():
        sets = min(MOST_SETS, -(-ROTATED_BYTES // (2 * n * k)))
        weights = [_normal(n, k) * k**-0.5 for _ in range(sets)]
        bias = _normal(n)
        packed = [kernels.Linear(view(weight), view(bias), stream) for weight in weights]
        for m in TOKENS:
            yield _measure(name, m, activation, weights, bias, packed, stream, facts)


def _measure(
    name: str,
    m: int,
    activation: str,
    weights: list[Tensor],
    bias: Tensor,
    packed: list[kernels.Linear],
    stream: kernels.Stream,
    facts: dict[str, Any],
) -> Rows:
    n, k = weights[0].shape
    x, out = _normal(m, k), torch.empty(m, n, device="cuda", dtype=torch.float16)
    source, target = view(x), view(out)
    own = [partial(kernels.linear, target, source, each, activation, stream) for each in packed]
    # The last launch leaves its result in `out`.
    ours = launches("fusewire", stream, own)
    difference, allowed = _difference(x, weights[-1], bias, activation, out)
    sides = [
        ours,
        torch_launches("torch", [partial(_torch, x, w, bias, activation) for w in weights]),
    ]
    ms = medians_ms(sides, rounds=5, turn_ms=6.0)
    return [
        {
            **facts,
            "benchmark": "gemm",
            "case": f"{name} {m}",
            "shape": [m, n, k],
            "activation": activation,
            "dtype": "float16",
            "system": system,
            "us": round(value * 1e3, 2),
            "tflops": round(2 * m * n * k / value * 1e-9, 1),
            "share_of_matmul": round(2 * m * n * k / value * 1e-9 / facts["matmul_tflops"], 4),
            "times_torch": round(ms["torch"] / value, 3),
        }
        | ({"max_abs_difference": difference, "torchs": allowed} if system == "fusewire" else {})
        for system, value in ms.items()
    ]


def _torch(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    y = F.linear(x, weight, bias)
    return F.gelu(y) if activation == "gelu_erf" else y


def _difference(
    x: Tensor, weight: Tensor, bias: Tensor, activation: str, out: Tensor
) -> tuple[float, float]:
    """Returns the differences of ours and of torch's fp16 from fp32."""
    wanted = _torch(x.float(), weight.float(), bias.float(), activation)
    theirs = _torch(x, weight, bias, activation)
    return float((out - wanted).abs().max()), float((theirs - wanted).abs().max())


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float16)

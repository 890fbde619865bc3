"""Row kernels at 32768 x 1024 in fp16: bytes per second, as a share of the run's copy bandwidth.

Bytes are the minimum that must be moved: each input read once, the output written once. Buffers
rotate, so that nothing is in the L2 cache; the token embedding has as many rows as a multilingual
vocabulary, so that gathered rows are new.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from fusewire import kernels
from torch import Tensor

from benchmarks.gpu.own import launches, view
from benchmarks.gpu.timing import medians_ms, torch_launches
from benchmarks.records import Rows

ROWS, COLS, SETS = 32768, 1024, 4
VOCABULARY, POSITIONS, TYPES = 250_002, 512, 2
EPS = 1e-5


class Inputs(NamedTuple):
    """One of the sets that rotate; all have the same weights."""

    x: Tensor
    ids: Tensor
    positions: Tensor
    types: Tensor
    word: Tensor
    position: Tensor
    token_type: Tensor
    weight: Tensor
    bias: Tensor


class Op(NamedTuple):
    """An op that moves `matrices` of ROWS x COLS; `own` writes its first argument, `torch` returns
    the result."""

    matrices: int
    own: Callable[[kernels.Tensor, Any, kernels.Stream], None]
    torch: Callable[[Any], Tensor]


def _embedding(i: Any) -> Tensor:
    x = F.embedding(i.ids, i.word) + F.embedding(i.types, i.token_type)
    return F.layer_norm(x + F.embedding(i.positions, i.position), (COLS,), i.weight, i.bias, EPS)


OPS = {
    "copy": Op(2, lambda out, i, s: None, lambda i: i.x.clone()),
    "layer_norm": Op(
        2,
        lambda out, i, s: kernels.layer_norm(out, i.x, i.weight, i.bias, EPS, s),
        lambda i: F.layer_norm(i.x, (COLS,), i.weight, i.bias, EPS),
    ),
    "rms_norm": Op(
        2,
        lambda out, i, s: kernels.rms_norm(out, i.x, i.weight, EPS, s),
        lambda i: F.rms_norm(i.x, (COLS,), i.weight, EPS),
    ),
    "softmax": Op(
        2,
        lambda out, i, s: kernels.softmax(out, i.x, s),
        lambda i: torch.softmax(i.x, -1),
    ),
    "embed_layer_norm": Op(
        2,
        lambda out, i, s: kernels.embed_layer_norm(
            out,
            i.ids,
            i.positions,
            i.types,
            i.word,
            i.position,
            i.token_type,
            i.weight,
            i.bias,
            EPS,
            s,
        ),
        _embedding,
    ),
    "activate": Op(
        2,
        lambda out, i, s: kernels.activate(out, i.x, "gelu_erf", s),
        lambda i: F.gelu(i.x),
    ),
}


def random_inputs() -> list[Inputs]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.float16)

    def below(end: int, dtype: torch.dtype) -> Tensor:
        return torch.randint(0, end, (ROWS,), device="cuda", dtype=dtype)

    tables = normal(VOCABULARY, COLS), normal(POSITIONS, COLS), normal(TYPES, COLS)
    norm = 1 + normal(COLS) / 10, normal(COLS) / 10
    return [
        Inputs(
            normal(ROWS, COLS),
            below(VOCABULARY, torch.int64),
            below(POSITIONS, torch.int32),
            below(TYPES, torch.int32),
            *tables,
            *norm,
        )
        for _ in range(SETS)
    ]


def run(options: argparse.Namespace, facts: dict[str, Any]) -> Iterator[Rows]:
    torch.manual_seed(0)
    inputs = random_inputs()
    ours = [Inputs(*(view(tensor) for tensor in each)) for each in inputs]
    stream = kernels.Stream("cuda")
    outs = [torch.empty_like(each.x) for each in inputs]
    targets = [view(out) for out in outs]
    for name, op in OPS.items():
        sides = [torch_launches("torch", [partial(op.torch, each) for each in inputs])]
        differences: dict[str, float] = {}
        if name != "copy":
            compiled = torch.compile(op.torch, dynamic=False)
            calls = [partial(compiled, each) for each in inputs]
            sides.append(torch_launches("torch, compiled", calls))
            pairs = zip(targets, ours, strict=True)
            own = [partial(op.own, out, each, stream) for out, each in pairs]
            sides.insert(0, launches("fusewire", stream, own))
            differences = _differences(op, inputs[0], outs[0])
        ms = medians_ms(sides)
        nbytes = op.matrices * inputs[0].x.nbytes
        yield [
            {
                **facts,
                "benchmark": "kernels",
                "case": name,
                "shape": [ROWS, COLS],
                "dtype": "float16",
                "system": system,
                "us": round(value * 1e3, 2),
                "tb_s": round(nbytes / value * 1e-9, 3),
                "share_of_copy": round(nbytes / value * 1e-9 / facts["copy_tb_s"], 4),
                "max_abs_difference": differences.get(system),
            }
            for system, value in ms.items()
        ]


def _differences(op: Op, inputs: Inputs, out: Tensor) -> dict[str, float]:
    """Returns the differences from the same op in fp64; ours was computed when its launches were
    captured."""
    wide = Inputs(*(t.double() if t.is_floating_point() else t for t in inputs))
    wanted = op.torch(wide)
    found = {"fusewire": out, "torch": op.torch(inputs)}
    return {name: float((got.double() - wanted).abs().max()) for name, got in found.items()}

"""Layers' weights in fp8, by row and in blocks, int8 and 4 bits compared with fp16 on a GPU:
`python -m benchmarks.weight_formats --device cuda`.

Forwards of BERT-base and -large (64 sequences of up to 512) in the formats of `--quantize`, steps
of Llama-3-8B's shape (1 and 64 sequences, context 1024), also with an FP8 KV cache, and their
GEMMs. These are compared with torch's `_scaled_mm` with scales by row, for rows that are quantised
before and for rows that torch quantises in a kernel compiled with the GEMM, and with its `_int_mm`,
which returns unscaled sums. Random weights; those of GEMMs and steps can be represented exactly in
4 bits. Each case is first computed in all formats; the cosines tell how close the others are to
fp16.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from fusewire import kernels
from torch import Tensor

from benchmarks.gpu import four_bits, own, rivals
from benchmarks.gpu.generation_models import STORED, Past, own_model, transformers_model
from benchmarks.gpu.generation_own import Pages, Step
from benchmarks.gpu.generation_workload import SHAPES
from benchmarks.gpu.generation_workload import Case as Steps
from benchmarks.gpu.own import launches, view
from benchmarks.gpu.timing import Contender, medians_ms, torch_launches
from benchmarks.gpu.weight_formats_report import BENCHMARK
from benchmarks.gpu.workload import SIZES, Case
from benchmarks.records import Row, Rows

FORMATS = {"none": None, "fp8": "float8_e4m3", "fp8_blocks": None, "int8": "int8", "int4": None}
OF_ENCODERS = ("none", "fp8", "int8")
# Of a step: the format of weights, and of keys and values.
OF_STEPS = {name: (name, "auto") for name in FORMATS} | {"fp8, fp8 KV": ("fp8", "fp8")}
# In 8 bits the error of a GEMM is some 4 %. It adds up over the 224 GEMMs of a Llama with random
# weights; norms after each block, as in BERT, limit it.
LEAST_COSINES = {"product": 0.998, "encoder": 0.98, "step": 0.8}
# In 4 bits the weights are the same.
LEAST_COSINES_INT4 = {"product": 0.9999, "step": 0.99}
ROTATED_BYTES = 160 << 20  # of weights, more than the L2 cache holds


def run(options: argparse.Namespace, facts: dict[str, Any]) -> Iterator[Rows]:
    facts = facts | {"benchmark": BENCHMARK}
    for part in options.parts:
        if part == "products":
            rows = _products(options.compiled)
        elif part in SIZES:
            rows = _encoder(part)
        else:
            rows = _steps(part)
        for each in rows:
            yield [facts | row for row in each]
        gc.collect()
        torch.cuda.empty_cache()


def _rows(
    model: str, case: str, ms: dict[str, float], cosines: dict[str, float], **more: Any
) -> Rows:
    first = next(iter(ms.values()))
    found: list[Row] = [
        {
            "model": model,
            "case": case,
            "system": name,
            "ms": round(each, 4),
            "times_fp16": round(first / each, 3),
            "cosine": round(cosines.get(name, 1.0), 6),
            **more,
        }
        for name, each in ms.items()
    ]
    return found


def _nearness(kind: str, case: str, answers: dict[str, Tensor]) -> dict[str, float]:
    """Returns the mean cosines of rows to those of the first format. Raises SystemExit where they
    are too small for the same weights."""
    exact = answers["none"].float()
    found = {
        name: float(torch.cosine_similarity(exact, answer.float(), dim=-1).mean())
        for name, answer in answers.items()
    }
    for name, cosine in found.items():
        least = LEAST_COSINES_INT4 if name == "int4" else LEAST_COSINES
        if not cosine >= least[kind]:
            raise SystemExit(f"{case}: got a mean cosine of {cosine} of {name} to fp16")
    return found


def _encoder(size: str) -> Iterator[Rows]:
    exact = rivals.bert(SIZES[size])
    case = Case(size, 64, 512)
    sides = [
        own.Fusewire(own.encoder(exact, quantize=quantize), case.batch(0))
        for quantize in OF_ENCODERS
    ]
    answers = {name: side.output() for name, side in zip(OF_ENCODERS, sides, strict=True)}
    near = _nearness("encoder", case.name, answers)
    contenders = [
        Contender(name, side.forward, side.stream)
        for name, side in zip(OF_ENCODERS, sides, strict=True)
    ]
    more = {"tokens": sum(case.lengths())}
    yield _rows(SIZES[size].name, case.name, medians_ms(contenders), near, **more)


def _steps(name: str) -> Iterator[Rows]:
    usual = transformers_model(SHAPES[name])
    for module in usual.model.layers.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data.copy_(four_bits.rounded(module.weight.data))
    models = {
        system: own_model(usual, quantize=quantize, kv_cache_dtype=kv_cache_dtype)
        for system, (quantize, kv_cache_dtype) in OF_STEPS.items()
    }
    for batch in (1, 64):
        case = Steps(name, batch, 1024)
        ids = torch.randint(0, case.shape.vocabulary, (batch, 1))
        past = Past(case, float8=True)
        steps = {system: Step(Pages(model, case), past, ids) for system, model in models.items()}
        answers = {system: step.output() for system, step in steps.items()}
        near = _nearness("step", case.name, answers)
        contenders = [
            Contender(system, step.launched().run, step.stream) for system, step in steps.items()
        ]
        yield _rows(case.shape.name, case.name, medians_ms(contenders), near)
        del steps, contenders
        gc.collect()


def _products(compiled: bool) -> Iterator[Rows]:
    torch.manual_seed(0)
    stream = kernels.Stream("cuda")
    stream.tuning = True
    for model, (tokens, shapes) in _shapes().items():
        for n, k in shapes:
            for m in tokens:
                yield _product(model, m, n, k, stream, compiled)


def _shapes() -> dict[str, tuple[tuple[int, ...], list[tuple[int, int]]]]:
    """Returns, by name, the numbers of rows, and out_features and in_features of the GEMMs."""
    found: dict[str, tuple[tuple[int, ...], list[tuple[int, int]]]] = {}
    for size in SIZES.values():
        h, inner = size.hidden, size.intermediate
        found[size.name] = (19902,), [(3 * h, h), (h, h), (inner, h), (h, inner)]
    llama = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    found["Llama-3-8B"] = (1, 64, 128, 256, 1024), llama
    return found


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    top = x.abs().amax(1, keepdim=True).float()
    return (x.float() * (448.0 / top)).to(torch.float8_e4m3fn), top / 448.0


def _scaled_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    numbers, tops = _rounded(x)
    return torch._scaled_mm(numbers, weight.t(), tops, scales.t(), out_dtype=torch.bfloat16)


def _product(model: str, m: int, n: int, k: int, stream: kernels.Stream, compiled: bool) -> Rows:
    """Times one GEMM in bfloat16: torch has scales by row for no other output dtype."""
    sets = min(48, -(-ROTATED_BYTES // (n * k)))
    half = {"device": "cuda", "dtype": torch.bfloat16}
    weights = [four_bits.rounded(torch.randn(n, k, **half) * k**-0.5) for _ in range(sets)]
    x, out = torch.randn(m, k, **half), torch.empty(m, n, **half)
    source, target = view(x), view(out)
    results, contenders = {}, []
    for name, stored in FORMATS.items():
        if name in STORED:
            packed = [STORED[name](w, None, stream) for w in weights]
        else:
            packed = [kernels.Linear(view(w), None, stream, format=stored) for w in weights]
        calls = [partial(kernels.linear, target, source, w, "none", stream) for w in packed]
        calls[0]()
        stream.synchronize()
        results[name] = out.clone()
        contenders.append(launches(name, stream, calls))
    near = _nearness("product", f"{m} x {n} x {k}", results)
    quantized = [_rounded(w) for w in weights]
    numbers, tops = _rounded(x)
    contenders.append(
        torch_launches(
            "torch _scaled_mm, rows given",
            [
                partial(torch._scaled_mm, numbers, w.t(), tops, s.t(), out_dtype=torch.bfloat16)
                for w, s in quantized
            ],
        )
    )
    if m > 16:  # its minimum number of rows
        integers = [torch.randint(-127, 128, each, dtype=torch.int8, device="cuda")
                    for each in ((m, k), *[(n, k)] * sets)]  # fmt: skip
        contenders.append(
            torch_launches(
                "torch _int_mm, sums",
                [partial(torch._int_mm, integers[0], w.t()) for w in integers[1:]],
            )
        )
    if compiled:
        call = torch.compile(_scaled_mm, dynamic=False)
        contenders.append(
            torch_launches("torch compiled", [partial(call, x, w, s) for w, s in quantized])
        )
    return _rows(model, f"{m} x {n} x {k}", medians_ms(contenders), near)

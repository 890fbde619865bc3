"""GEMMs with 4-bit weights on a CPU: `python -m benchmarks.products_4_bits`.

The four GEMMs of layers of a Llama with a hidden size of 2048, with symmetric 4-bit weights in
groups of 128, for few rows and for many. There are several layers, whose weights are read from
memory in turn. Ours on the same weights in float32, int8 and 4 bits (`int4`: x stays in float32;
`w4a8`: its rows are rounded to int8) is compared with ONNX Runtime's MatMulNBits (accuracy level 1:
x in float32; 4: x in int8) and torch's int4 GEMM in bfloat16, the only dtype for which torch has
fast kernels, all in one process, taking turns. The outputs of each are first checked, on new random
input, against float64: `error` is the root mean square, for results whose root mean square is 1.

Writes bench-results/products_4_bits.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from fusewire import kernels
from fusewire.placement import Placement
from numpy.typing import NDArray

from benchmarks import arena, machine, records
from benchmarks.products_4_bits_report import BENCHMARK, MODEL, table

GROUP, MIDDLE = 128, 8
# [out_features, in_features]: query-key-value, attention output, gate and up, down.
SHAPES = ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192))
ROWS = (1, 4, 16, 64, 256)
SYSTEMS = (
    "fusewire float32",
    "fusewire int8",
    "fusewire int4",
    "fusewire w4a8",
    "onnxruntime int4",
    "onnxruntime w4a8",
    "torch int4",
)
MOST_ERROR = 0.05  # a system with a larger error computes something else, and is not timed
SETTLE_S = 0.05  # longer than the threads of any library spin after their work
Array = NDArray[Any]
Product = Callable[[Array], Array]
Inputs = dict[int, Array]  # by in_features
Products = Callable[[Inputs], list[Array]]  # of all layers, one after the other


class Weight:
    """Codes, scales, and the dequantised weight."""

    def __init__(self, shape: tuple[int, int], seed: int) -> None:
        rng = np.random.default_rng(seed)
        out, inner = shape
        self.codes = rng.integers(0, 16, shape).astype(np.uint8)
        spread = np.exp(rng.normal(0, 0.3, (out, inner // GROUP))) / (4.6 * inner**0.5)
        self.scales = spread.astype(np.float16).astype(np.float32)
        centred = self.codes.astype(np.float32) - MIDDLE
        self.numbers = centred * np.repeat(self.scales, GROUP, axis=1)

    @property
    def nibbles(self) -> Array:
        """Returns two codes per byte, the first in the low bits."""
        return self.codes[:, ::2] | self.codes[:, 1::2] << 4


def of_fusewire(weight: Weight, stored: str) -> Product:
    place = Placement("cpu", quantize="int8" if stored == "int8" else "none")
    if stored in ("int4", "w4a8"):
        zeros = np.full_like(weight.scales, MIDDLE, np.uint8)
        linear = place.int4_linear(weight.nibbles, weight.scales, zeros, None, "weight", stored)
    else:
        linear = place.layer_linear(weight.numbers, None, "weight")

    def product(x: Array) -> Array:
        out = np.empty((len(x), linear.out_features), np.float32)
        tensors = kernels.Tensor.from_numpy(out), kernels.Tensor.from_numpy(x)
        kernels.linear(*tensors, linear, "none", place.stream)
        return out

    return product


def of_onnxruntime(weights: list[Weight], stored: str, threads: int) -> Products:
    """Returns ONNX Runtime's GEMMs in one session, as each session has its own threads, which
    spin."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants, outputs = [], [], []
    for at, weight in enumerate(weights):
        out, inner = weight.codes.shape
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                [f"x{inner}", f"codes{at}", f"scales{at}"],
                [f"y{at}"],
                domain="com.microsoft",
                K=inner,
                N=out,
                bits=4,
                block_size=GROUP,
                accuracy_level=4 if stored == "w4a8" else 1,
            )
        )
        blocks = weight.nibbles.reshape(out, inner // GROUP, GROUP // 2)
        constants.append(numpy_helper.from_array(blocks, f"codes{at}"))
        constants.append(numpy_helper.from_array(weight.scales.reshape(-1), f"scales{at}"))
        outputs.append(helper.make_tensor_value_info(f"y{at}", TensorProto.FLOAT, ["rows", out]))
    inputs = [
        helper.make_tensor_value_info(f"x{inner}", TensorProto.FLOAT, ["rows", inner])
        for inner in sorted({weight.codes.shape[1] for weight in weights})
    ]
    graph = helper.make_graph(nodes, "products", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda x: session.run(None, {f"x{inner}": rows for inner, rows in x.items()})


def of_torch(weight: Weight) -> Product:
    codes = torch.from_numpy(weight.codes.astype(np.int32))
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    scales = torch.from_numpy(weight.scales.T.copy()).bfloat16()
    both = torch.stack([scales, torch.zeros_like(scales)], 2)
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu

    def product(x: Array) -> Array:
        found: Array = multiply(torch.from_numpy(x).bfloat16(), packed, GROUP, both).float().numpy()
        return found

    return product


def made(system: str, weights: list[Weight], threads: int) -> Products:
    library, _, stored = system.partition(" ")
    if library == "onnxruntime":
        return of_onnxruntime(weights, stored, threads)
    products = [of_torch(w) if library == "torch" else of_fusewire(w, stored) for w in weights]
    inner = [weight.codes.shape[1] for weight in weights]
    return lambda x: [product(x[size]) for product, size in zip(products, inner, strict=True)]


def installed(systems: Sequence[str]) -> list[str]:
    """Returns the systems whose packages are installed; prints which are not."""
    missing = [each for each in ("onnx", "onnxruntime") if not find_spec(each)]
    if missing and any(each.startswith("onnxruntime") for each in systems):
        print(f"onnxruntime: left out, not installed; pip install {' '.join(missing)}")
        return [each for each in systems if not each.startswith("onnxruntime")]
    return list(systems)


def inputs(rows: int, rng: np.random.Generator) -> Inputs:
    return {
        inner: rng.standard_normal((rows, inner)).astype(np.float32)
        for inner in {shape[1] for shape in SHAPES}
    }


def errors_of(weights: list[Weight], products: dict[str, Products]) -> dict[str, float]:
    """Returns the errors of the systems that are correct; prints which are not. Raises SystemExit
    where one of ours is wrong."""
    x = inputs(5, np.random.default_rng(time.time_ns() % 2**32))
    wanted = [
        x[weight.codes.shape[1]].astype(np.float64) @ weight.numbers.T.astype(np.float64)
        for weight in weights
    ]
    found = {}
    for system, of_system in products.items():
        both = zip(of_system(x), wanted, strict=True)
        squares = [np.mean((got - exact) ** 2) / np.mean(exact**2) for got, exact in both]
        error = float(np.sqrt(np.mean(squares)))
        if error <= MOST_ERROR:
            found[system] = error
        elif system.startswith("fusewire"):
            raise SystemExit(f"{system}: got an error of {error}, wanted at most {MOST_ERROR}")
        else:
            print(f"{system}: left out, error {error:.2g}")
    return found


def seconds_of(products: Products, x: Inputs, seconds: float) -> list[float]:
    """Returns the seconds of each run, for about `seconds`."""
    time.sleep(SETTLE_S)
    products(x)
    end, taken = time.perf_counter() + seconds, []
    while not taken or time.perf_counter() < end:
        began = time.perf_counter()
        products(x)
        taken.append(time.perf_counter() - began)
    return taken


def measured(options: argparse.Namespace) -> records.Rows:
    weights = [
        Weight(shape, len(SHAPES) * layer + at)
        for layer in range(options.layers)
        for at, shape in enumerate(SHAPES)
    ]
    products = {
        system: made(system, weights, options.threads) for system in installed(options.systems)
    }
    errors = errors_of(weights, products)
    rows: records.Rows = []
    for count in options.rows:
        x = inputs(count, np.random.default_rng(count))
        times: dict[str, list[float]] = {system: [] for system in errors}
        watch = machine.Watch()
        for _ in range(options.rounds):
            for system, taken in times.items():
                taken += seconds_of(products[system], x, options.seconds)
        disturbed = watch.disturbed()
        rows += [
            {
                "case": f"{count} row{'s' if count > 1 else ''}",
                "system": system,
                "ms": round(median(taken) / options.layers * 1e3, 3),
                "least_ms": round(min(taken) / options.layers * 1e3, 3),
                "error": float(f"{errors[system]:.2g}"),
                "disturbed": disturbed,
            }
            for system, taken in times.items()
        ]
        print(
            f"{count} rows: " + ", ".join(f"{r['system']} {r['ms']}" for r in rows[-len(times) :])
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--rounds", type=int, default=4, help="turns of each system")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one turn")
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    arena.pin(options.threads)
    kernels.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    found = machine.facts("fusewire", "numpy", "onnx", "onnxruntime", "torch")
    facts = found | {"benchmark": BENCHMARK, "model": MODEL, "threads": options.threads}
    print(f"{facts['cpu']}, {kernels.cpu_target()}, load average {facts['load_average']}")
    machine.settle()
    rows = [facts | row for row in measured(options)]
    records.append(options.out / f"{BENCHMARK}.jsonl", rows)
    print(table(rows))


if __name__ == "__main__":
    main()

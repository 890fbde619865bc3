"""Why the library has its own CPU GEMM: `python -m benchmarks.gemm`.

Compares ours (`kernels.linear`) with oneDNN's matmul in fp32, both with prepacked weights and fused
bias and erf GELU, taking turns in one process: first with known row counts, then the first call
with a new row count, for which oneDNN compiles a kernel. Ragged batches have new row counts all the
time. Only this file needs oneDNN, which comes from two wheels (see NEEDS).

Writes bench-results/gemm.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from fusewire import kernels

from benchmarks import arena, machine, records
from tests.tolerance import MODEL_FP32

NEEDS = ("onednn-cpu-gomp==2023.2.0", "onednn-devel-cpu-gomp==2023.2.0")
# (in, out) of a layer's GEMMs: query-key-value, attention output, both of the feed-forward.
SHAPES = {
    "MiniLM-L6": [(384, 1152), (384, 384), (384, 1536), (1536, 384)],
    "BERT-base": [(768, 2304), (768, 768), (768, 3072), (3072, 768)],
}
ROWS = [1, 16, 128, 512, 2236]  # 2236: the tokens of the mixed batch of 32
NEW_ROWS = [37, 211, 463, 1021]  # primes: no batch above has these row counts
PACKED_FOR = 512
SETTLE_S = 0.02  # longer than the threads of either library spin after their work
Call = Callable[[], Any]


class OneDnn:
    """The C interface of gemm_onednn.cc, compiled when it is created."""

    def __init__(self, folder: Path) -> None:
        prefix = Path(sys.prefix)
        if not (prefix / "include/oneapi/dnnl/dnnl.hpp").is_file():
            raise SystemExit(f"oneDNN: not in {prefix}; pip install {' '.join(NEEDS)}")
        compiler = shutil.which("g++") or shutil.which("c++")
        if compiler is None:
            raise SystemExit("g++: not found; install a C++ compiler")
        library = folder / "gemm_onednn.so"
        source = Path(__file__).with_name("gemm_onednn.cc")
        flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fopenmp", f"-I{prefix / 'include'}"]
        link = [f"-L{prefix / 'lib'}", "-ldnnl", f"-Wl,-rpath,{prefix / 'lib'}"]
        subprocess.run([compiler, *flags, source, "-o", library, *link], check=True)
        self._c = ctypes.CDLL(str(library))
        integer, pointer = ctypes.c_int64, ctypes.c_void_p
        self._c.onednn_linear.argtypes = [integer] * 3 + [pointer] * 2 + [ctypes.c_int]
        self._c.onednn_linear.restype = pointer
        self._c.onednn_prepare.argtypes = [pointer, integer]
        self._c.onednn_prepare.restype = ctypes.c_bool
        self._c.onednn_run.argtypes = [pointer] * 3
        self._c.onednn_run.restype = ctypes.c_bool
        self._c.onednn_free.argtypes = [pointer]

    def set_threads(self, threads: int) -> None:
        self._c.onednn_set_threads(threads)

    def linear(self, rows: int, weight: np.ndarray, bias: np.ndarray) -> int:
        made = self._c.onednn_linear(rows, *weight.shape, weight.ctypes.data, bias.ctypes.data, 1)
        return int(_checked(made))

    def prepare(self, linear: int, rows: int) -> None:
        _checked(self._c.onednn_prepare(linear, rows))

    def call(self, linear: int, x: np.ndarray, out: np.ndarray) -> Call:
        run, a, b = self._c.onednn_run, x.ctypes.data, out.ctypes.data
        return lambda: _checked(run(linear, a, b))

    def free(self, linear: int) -> None:
        self._c.onednn_free(linear)


def _checked(answer: Any) -> Any:
    if not answer:
        raise RuntimeError("oneDNN failed; it says why on stderr")
    return answer


def seconds_of(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def take_turns(
    ours: Call, theirs: Call, rounds: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Returns the seconds of each call of each side."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for which in ((0, 1), (1, 0))[turn % 2]:
            call = (ours, theirs)[which]
            time.sleep(SETTLE_S)
            call()
            end = time.perf_counter() + seconds
            times[which].append(seconds_of(call))
            while time.perf_counter() < end:
                times[which].append(seconds_of(call))
    return times


class Operands:
    """A weight with bias, packed for both libraries; input and outputs for the largest row
    count."""

    def __init__(self, inside: int, outside: int) -> None:
        rng = np.random.default_rng(0)
        most = max(ROWS + NEW_ROWS)
        self.weight = (rng.standard_normal((outside, inside)) / inside**0.5).astype(np.float32)
        self.bias = rng.standard_normal(outside).astype(np.float32)
        self.x = rng.standard_normal((most, inside)).astype(np.float32)
        self.out = np.empty((most, outside), np.float32)
        self.their_out = np.empty((most, outside), np.float32)
        tensor = kernels.Tensor.from_numpy
        self.packed = kernels.Linear(tensor(self.weight), tensor(self.bias))

    def ours(self, rows: int) -> Call:
        out = kernels.Tensor.from_numpy(self.out[:rows])
        x = kernels.Tensor.from_numpy(self.x[:rows])
        return lambda: kernels.linear(out, x, self.packed, "gelu_erf")

    def check(self, rows: int) -> float:
        difference = float(np.abs(self.out[:rows] - self.their_out[:rows]).max())
        if not difference <= MODEL_FP32:
            raise SystemExit(f"gemm: results differ by {difference}, wanted at most {MODEL_FP32}")
        return difference


def known_rows(operands: Operands, onednn: OneDnn, options: argparse.Namespace) -> list[dict]:
    found = []
    for rows in ROWS:
        linear = onednn.linear(rows, operands.weight, operands.bias)
        theirs = onednn.call(linear, operands.x, operands.their_out)
        ours_s, theirs_s = take_turns(operands.ours(rows), theirs, options.rounds, options.seconds)
        found.append({"call": "known", "rows": rows, "ours_s": ours_s, "onednn_s": theirs_s})
        found[-1]["max_abs_difference"] = operands.check(rows)
        onednn.free(linear)
    return found


def new_rows(operands: Operands, onednn: OneDnn) -> list[dict]:
    """Returns rows of single calls with new row counts, with weights packed before; they can only
    be repeated with another shape."""
    linear = onednn.linear(PACKED_FOR, operands.weight, operands.bias)
    theirs = onednn.call(linear, operands.x, operands.their_out)
    found = []
    for rows in NEW_ROWS:
        onednn.prepare(linear, PACKED_FOR)
        theirs()  # wakes the threads and brings the weights into the cache
        began = time.perf_counter()
        onednn.prepare(linear, rows)
        theirs()
        theirs_s = time.perf_counter() - began
        time.sleep(SETTLE_S)
        operands.ours(PACKED_FOR)()
        ours_s = seconds_of(operands.ours(rows))
        found.append({"call": "new", "rows": rows, "ours_s": [ours_s], "onednn_s": [theirs_s]})
        found[-1]["max_abs_difference"] = operands.check(rows)
        time.sleep(SETTLE_S)
    onednn.free(linear)
    return found


def finished(row: dict[str, Any], model: str, inside: int, outside: int) -> dict[str, Any]:
    work = 2e-9 * row["rows"] * inside * outside
    times = row.pop("ours_s"), row.pop("onednn_s")
    ours_s, onednn_s = map(median, times)
    fastest = tuple(map(min, times))
    return {
        "benchmark": "gemm",
        "model": model,
        "in_features": inside,
        "out_features": outside,
        **row,
        "ours_ms": round(ours_s * 1e3, 4),
        "onednn_ms": round(onednn_s * 1e3, 4),
        "ours_gflops": round(work / ours_s, 1),
        "onednn_gflops": round(work / onednn_s, 1),
        "times_onednn": round(onednn_s / ours_s, 3),
        "times_onednn_fastest": round(fastest[1] / fastest[0], 3),
    }


def line(row: dict[str, Any]) -> str:
    shape = f"{row['rows']} x {row['in_features']} x {row['out_features']}"
    return (
        f"  {row['threads']} {row['call']:6} {shape:18} ours {row['ours_ms']:9.3f} ms "
        f"{row['ours_gflops']:6.1f} GF/s   oneDNN {row['onednn_ms']:9.3f} ms "
        f"{row['onednn_gflops']:6.1f} GF/s   {row['times_onednn']:6.2f} x"
    )


def summary(rows: list[dict[str, Any]]) -> str:
    """Returns how many times faster ours is than oneDNN: the median over shapes, by row count."""
    lines = ["", "times oneDNN, median of the shapes, by rows of a call"]
    for call, value, label in (
        ("known", "times_onednn", "known, medians"),
        ("known", "times_onednn_fastest", "known, fastest calls"),
        ("new", "times_onednn", "new, first calls"),
    ):
        for threads in sorted({row["threads"] for row in rows}):
            ratios: dict[int, list[float]] = {}
            for row in rows:
                if (row["call"], row["threads"]) == (call, threads):
                    ratios.setdefault(row["rows"], []).append(row[value])
            cells = [f"{count}: {median(found):.2f}" for count, found in ratios.items()]
            lines.append(f"  {threads} threads, {label:22}" + "   ".join(cells))
    worst = max(row["disturbed"] for row in rows)
    if worst > 0.05:
        lines.append(
            f"others took up to {worst:.0%} of the cores' time: a library that waits for all its "
            "threads then waits for the system's scheduler; compare the fastest calls"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=4, help="turns of each library")
    parser.add_argument("--seconds", type=float, default=0.05, help="length of one turn")
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    arena.pin(max(options.threads))
    facts = machine.facts("fusewire", "numpy", *(need.partition("==")[0] for need in NEEDS[:1]))
    target = kernels.cpu_target()
    print(f"{facts['cpu']}, {target}, fp32, load average {facts['load_average']}")
    rows = []
    with tempfile.TemporaryDirectory() as work:
        onednn = OneDnn(Path(work))
        for threads in options.threads:
            kernels.set_num_threads(threads)
            onednn.set_threads(threads)
            for model in options.models:
                for inside, outside in SHAPES[model]:
                    operands = Operands(inside, outside)
                    watch = machine.Watch()
                    measured = [*known_rows(operands, onednn, options), *new_rows(operands, onednn)]
                    run = {"threads": threads, "target": target, "disturbed": watch.disturbed()}
                    for raw in measured:
                        rows.append({**facts, **run, **finished(raw, model, inside, outside)})
                        print(line(rows[-1]), flush=True)
    print(summary(rows))
    records.append(options.out / "gemm.jsonl", rows)
    print(f"rows added to {options.out / 'gemm.jsonl'}")


if __name__ == "__main__":
    main()

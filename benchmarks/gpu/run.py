"""Runs one benchmark in the calling process: measures its facts, then yields its rows."""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import records
from benchmarks.gpu import tables

Benchmark = Callable[[argparse.Namespace, dict[str, Any]], Iterator[records.Rows]]


def run(name: str, options: argparse.Namespace) -> None:
    """Runs the benchmark and writes each row as it is measured, so that a later failure loses
    none."""
    import torch

    from benchmarks.gpu.facts import facts

    if not torch.cuda.is_available():
        raise SystemExit(f"{name}: got no NVIDIA GPU that torch sees, wanted one")
    benchmark: Benchmark = importlib.import_module(f"benchmarks.gpu.{name}").run
    torch.set_grad_enabled(False)
    began, here = time.perf_counter(), facts()
    print(
        f"== {name}: {here['gpu']}, matmul {here['matmul_tflops']} TFLOP/s, copy "
        f"{here['copy_tb_s']} TB/s",
        flush=True,
    )
    for rows in benchmark(options, here):
        records.append(options.out, rows)
        print(f"{time.perf_counter() - began:6.1f} s  {tables.line(rows)}", flush=True)

"""Where a benchmark ran, and the peak rates measured on that GPU: the keys of every row."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import Any

import torch

from benchmarks import machine
from benchmarks.gpu.timing import Contender, medians_ms

SIDE = 8192


def matmul() -> Contender:
    """Returns the fp16 matmul of random SIDE x SIDE matrices that shares of the matmul rate refer
    to."""
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.float16) for _ in range(2))
    product = torch.empty_like(a)
    return Contender("matmul", partial(torch.mm, a, b, out=product), torch.cuda.current_stream())


def matmul_tflops(ms: float) -> float:
    return round(2 * SIDE**3 / ms * 1e-9, 1)


def ceilings() -> dict[str, float]:
    """Returns the rates of a matmul in TFLOP/s and of a device copy in TB/s (bytes read and
    written)."""
    source = torch.randn(1 << 29, device="cuda", dtype=torch.float16)  # 1 GiB
    target = torch.empty_like(source)
    copy = Contender("copy", partial(target.copy_, source), torch.cuda.current_stream())
    ms = medians_ms([matmul(), copy], turn_ms=30.0)
    return {
        "matmul_tflops": matmul_tflops(ms["matmul"]),
        "copy_tb_s": round(2 * source.nbytes / ms["copy"] * 1e-9, 3),
    }


def facts() -> dict[str, Any]:
    """Returns hardware, driver, versions, ceilings and time."""
    return where("fusewire", "torch", "transformers", "triton") | ceilings()


def where(*packages: str) -> dict[str, Any]:
    """Returns the same without the ceilings."""
    properties = torch.cuda.get_device_properties(0)
    return {
        **machine.facts(*packages),
        "gpu": properties.name,
        "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "driver": _driver(),
        "cuda": torch.version.cuda,
    }


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

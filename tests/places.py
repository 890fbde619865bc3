"""Where tests run: each instruction set of this machine's CPU in fp32, and, marked gpu, its first
GPU in every precision.

A test with the fixture `place` (tests/conftest.py) runs in all of them; one for specific places has
`@pytest.mark.parametrize("place", [...], indirect=True)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from fusewire import kernels
from fusewire.placement import Placement

TORCH_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


class Where(NamedTuple):
    device: str
    dtype: str
    cpu_target: str = ""  # the instruction set to force; empty: the default


def _gpu(dtype: str):
    return pytest.param(Where("cuda", dtype), id=f"cuda-{dtype}", marks=pytest.mark.gpu)


CPU = pytest.param(Where("cpu", "float32"), id="cpu")
# Targets that differ from another one only in GEMMs with weights of some formats: tests of these
# formats run on them, and no others.
WITH_OTHER_PRODUCTS = {"avx512_vnni", "avx512_bf16"}
CPU_TARGETS_OF_PRODUCTS = [
    pytest.param(Where("cpu", "float32", name), id=name) for name in kernels.cpu_targets()
]
CPU_TARGETS = [target for target in CPU_TARGETS_OF_PRODUCTS if target.id not in WITH_OTHER_PRODUCTS]
GPU_FP32 = _gpu("float32")
GPU_HALVES = [_gpu("float16"), _gpu("bfloat16")]
GPU = [GPU_FP32, *GPU_HALVES]
EVERYWHERE = [*CPU_TARGETS, *GPU]


@cache
def why_no_gpu(count: int = 1) -> str:
    """Returns why tests marked gpu(count=...) cannot run here; empty where they can."""
    if not kernels.cuda_built():
        return "this build has no CUDA kernels (FUSEWIRE_CUDA=ON)"
    if "cuda:0" not in dict(kernels.devices()):
        return "this machine shows no GPU"
    if not torch.cuda.is_available():
        return "torch, the reference, sees no GPU: install its CUDA build"
    if torch.cuda.device_count() < count:
        return f"this machine shows {torch.cuda.device_count()}"
    return ""


@contextmanager
def at(where: Where) -> Iterator[Placement]:
    """Yields the placement with its instruction set forced, and on a GPU with tuned kernels, as
    where a model is served."""
    usual = kernels.cpu_target()
    kernels.set_cpu_target(where.cpu_target or usual)
    place = _placement(where.device, where.dtype)
    try:
        with place.tuning():
            yield place
    finally:
        kernels.set_cpu_target(usual)


@cache
def _placement(device: str, dtype: str) -> Placement:
    return Placement(device, dtype)


def on_gpu(place: Placement) -> bool:
    return place.device != "cpu"


def settle(place: Placement) -> None:
    """Waits for the placement's work and for torch's, which are not ordered with each other."""
    place.stream.synchronize()
    if on_gpu(place):
        torch.cuda.synchronize(place.device)


def as_torch(tensor: kernels.Tensor, place: Placement) -> torch.Tensor:
    """Returns a torch tensor over the same memory."""
    settle(place)
    return torch.from_dlpack(tensor)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds an fp32 array to values that the element type represents; returns other arrays
    unchanged."""
    if array.dtype != np.float32:
        return array
    return torch.from_numpy(array).to(TORCH_DTYPES[dtype]).float().numpy()

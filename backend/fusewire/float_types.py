"""Conversion of host arrays to the float types of kernels; numpy has no bfloat16."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import ConfigurationError

_PIECE = 1 << 20  # elements that a thread converts at a time


def converted(array: NDArray[Any], dtype: str, name: str = "tensor") -> NDArray[Any]:
    """Returns the values in `dtype` (float32, float16 or bfloat16), rounded to nearest even;
    bfloat16 as its bits (uint16). A 16-bit array is returned unchanged. Raises ConfigurationError,
    with `name`, if a value overflows float16."""
    if array.dtype in (np.float16, np.uint16):
        return np.ascontiguousarray(array)
    array = np.ascontiguousarray(array, np.float32)
    if dtype == "float32":
        return array
    halves, convert = _ROUNDED[dtype]
    out = np.empty(array.shape, halves)
    flat, rounded = array.reshape(-1), out.reshape(-1)
    if flat.size <= _PIECE:
        beyond = convert(flat, rounded)
    else:
        # numpy releases the GIL while it converts, so large models are converted on all cores.
        pieces = [slice(begin, begin + _PIECE) for begin in range(0, flat.size, _PIECE)]
        with ThreadPoolExecutor(min(len(pieces), os.cpu_count() or 1)) as threads:
            beyond = max(threads.map(lambda at: convert(flat[at], rounded[at]), pieces))
    if beyond:
        raise ConfigurationError(
            f"dtype: got float16 for {name}, whose largest value is {beyond:.4g}, wanted at most "
            "65504; use bfloat16 or float32"
        )
    return out


def widened(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Returns a result of `converted` in fp32; other arrays unchanged."""
    if dtype == "float16":
        return array.astype(np.float32)
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _to_float16(array: NDArray[np.float32], out: NDArray[Any]) -> float:
    """Returns the largest magnitude that overflowed to infinity, or 0."""
    with np.errstate(over="ignore"):
        out[:] = array
    beyond = np.isinf(out) & np.isfinite(array)
    return float(np.abs(array[beyond]).max(initial=0))


def _to_bfloat16(array: NDArray[np.float32], out: NDArray[Any]) -> float:
    """Rounds to nearest even and writes the bits of the bfloat16 values; NaN stays NaN. Returns 0:
    no overflow is reported."""
    bits = array.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    rounded[np.isnan(array)] = 0x7FC0
    out[:] = rounded
    return 0.0


_ROUNDED: dict[str, tuple[Any, Callable[[NDArray[np.float32], NDArray[Any]], float]]] = {
    "float16": (np.float16, _to_float16),
    "bfloat16": (np.uint16, _to_bfloat16),
}

"""GEMMs with int8 weights in numpy, step by step as in csrc/cpu/gemm_int8.h."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

F32 = np.float32


class Rounded(NamedTuple):
    """A matrix quantised by rows: numbers * scales[:, None], up to rounding."""

    numbers: np.ndarray  # integers
    scales: np.ndarray  # float32


def scales_of(matrix: np.ndarray) -> np.ndarray:
    return np.abs(matrix).max(1) / F32(127)


def rounded_weight(weight: np.ndarray, scales: np.ndarray | None = None) -> Rounded:
    scales = scales_of(weight) if scales is None else scales
    divisors = np.where(scales > 0, scales, F32(1))[:, None]
    return Rounded(np.clip(np.rint(weight / divisors), -128, 127).astype(np.int64), scales)


def rounded_rows(x: np.ndarray) -> Rounded:
    """Quantises by the reciprocal of the scale, which is rounded too."""
    largest = np.abs(x).max(1)
    inverses = np.where(largest > 0, F32(127) / np.where(largest > 0, largest, F32(1)), F32(0))
    return Rounded(np.rint(x * inverses[:, None]).astype(np.int64), scales_of(x))


def product(
    x: Rounded,
    weight: Rounded,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """Returns float32[rows, out_features], with every operation rounded in this order."""
    sums = x.numbers @ weight.numbers.T
    out = sums.astype(F32) * (x.scales[:, None] * weight.scales)
    if bias is not None:
        out = out + bias
    return out if residual is None else out + residual


def error_bound(x: Rounded, weight: Rounded) -> np.ndarray:
    """Returns the bound of the error from quantising both matrices: each element differs by half a
    scale, and a little more because the reciprocal is rounded."""
    half = 0.5 * (1 + 1e-4)
    inner = x.numbers.shape[1]
    of_x = half * x.scales[:, None] * np.abs(weight.numbers).sum(1) * weight.scales
    of_weight = half * weight.scales * (np.abs(x.numbers).sum(1) * x.scales)[:, None]
    return of_x + of_weight + half**2 * inner * x.scales[:, None] * weight.scales

"""Learned positions of a grid of patches, resampled for images of other sizes as in transformers
(bicubic, a = -0.75, without antialias). numpy only, in fp32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_A = -0.75  # coefficient of Keys' cubic convolution (1981), as in torch


def resampled(grid: NDArray[np.float32], rows: int, columns: int) -> NDArray[np.float32]:
    """Resamples [trained rows, trained columns, hidden] to [rows, columns, hidden]."""
    trained = grid.shape[:2]
    if (rows, columns) == trained:
        return grid
    tall = np.tensordot(_taps(trained[0], rows), grid, axes=(1, 0))
    return np.tensordot(_taps(trained[1], columns), tall, axes=(1, 1)).swapaxes(0, 1)


def _taps(side: int, wanted: int) -> NDArray[np.float32]:
    """Returns the weight of each of `side` points in each of `wanted` points: [wanted, side]."""
    centres = (np.arange(wanted, dtype=np.float32) + np.float32(0.5)) * np.float32(side / wanted)
    centres -= np.float32(0.5)
    before = np.floor(centres)
    taps = np.zeros((wanted, side), np.float32)
    for offset in (-1, 0, 1, 2):
        at = np.clip(before + offset, 0, side - 1).astype(np.int64)
        distance = np.abs(centres - (before + offset))
        np.add.at(taps, (np.arange(wanted), at), _cubic(distance))
    return taps


def _cubic(x: NDArray[np.float32]) -> NDArray[np.float32]:
    near = ((_A + 2) * x - (_A + 3)) * x * x + 1
    far = ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A
    return np.where(x <= 1, near, far)

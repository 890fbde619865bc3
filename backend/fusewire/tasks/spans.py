"""The most probable spans from start and end probabilities (Chen et al., 2017, DrQA)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def best_spans(
    start: NDArray[np.float32], end: NDArray[np.float32], max_length: int, count: int
) -> list[tuple[int, int, float]]:
    """Returns up to `count` spans (first, last, score), best first; score = start[first] *
    end[last].

    start, end: probabilities [n]. A span has 1 to `max_length` tokens. Spans of probability 0 are
    left out. Only the band of allowed spans is built: n * max_length products, not n * n.
    """
    width = min(max_length, len(start))
    padded = np.concatenate([end, np.zeros(width - 1, end.dtype)])
    band = start[:, None] * np.lib.stride_tricks.sliding_window_view(padded, width)
    flat = band.ravel()
    top = np.arange(flat.size)
    if count < flat.size:
        top = np.argpartition(-flat, count - 1)[:count]
    top = top[np.argsort(-flat[top], kind="stable")]
    return [
        (int(index) // width, int(index) // width + int(index) % width, float(flat[index]))
        for index in top
        if flat[index] > 0
    ]

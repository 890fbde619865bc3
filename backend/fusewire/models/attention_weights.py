"""Attention weights in numpy, for callers that want them; the kernels never materialise them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def head_weights(
    queries: NDArray[np.float32], keys: NDArray[np.float32], scale: float
) -> NDArray[np.float32]:
    """Returns the attention weights of one head: softmax(scale * queries keys^T), [queries,
    keys]."""
    scores: NDArray[np.float32] = queries @ keys.T * np.float32(scale)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    return scores


def mean_weights(
    queries: NDArray[np.float32], keys: NDArray[np.float32], heads: int, scale: float
) -> NDArray[np.float32]:
    """Returns the mean of the attention weights over the heads, whose columns are adjacent:
    [queries, keys]."""
    of_heads = [each.reshape(len(each), heads, -1).swapaxes(0, 1) for each in (queries, keys)]
    mean = np.zeros((len(queries), len(keys)), np.float32)
    for q, k in zip(*of_heads, strict=True):
        mean += head_weights(q, k, scale) / np.float32(heads)
    return mean

"""Converts the logits of heads, which are few rows, to probabilities. fp32 in, fp32 out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / (1 + exp(-x)), without overflow for very negative x."""
    decay = np.exp(-np.abs(logits))
    return np.where(logits >= 0, np.float32(1), decay) / (np.float32(1) + decay)


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Softmax along the last axis."""
    grown = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return grown / grown.sum(axis=-1, keepdims=True)

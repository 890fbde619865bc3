"""Trains with numpy alone: matrices with Muon (Jordan et al., 2024), an embedding with Adam.

The models and their gradients are in `tiny_gpt.py` and `tiny_translator.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Weights = dict[str, Floats]
Step = tuple[Floats, Callable[[Floats], Floats]]  # a result, and the function of its backward pass
Shard = TypeVar("Shard")


def train(
    weights: Weights,
    embedding: str,
    steps: int,
    shards: Callable[[], Sequence[Shard]],
    gradients: Callable[[Weights, Shard], tuple[float, Weights]],
    on_loss: Callable[[float], None],
) -> None:
    """Trains `weights` in place: `embedding` names the one that Adam updates, Muon updates the
    others.

    `shards` returns the next batch in parts, `gradients` the loss and gradients of a part. Parts
    are computed in parallel and their gradients are averaged. `on_loss` is called with the loss of
    every step.
    """
    mean = {name: np.zeros_like(weight) for name, weight in weights.items()}
    square = np.zeros_like(weights[embedding])
    with ThreadPoolExecutor() as pool:
        for step in range(1, steps + 1):
            parts = list(pool.map(lambda shard: gradients(weights, shard), shards()))
            on_loss(float(np.mean([loss for loss, _ in parts])))
            rate = min(1, step / 20) * (1 - (step - 1) / steps)
            for name, weight in weights.items():
                grad = sum(part[name] for _, part in parts) / np.float32(len(parts))
                mean[name] += np.float32(0.1) * (grad - mean[name])
                if name != embedding:
                    weight -= np.float32(0.05 * rate) * orthogonal(0.9 * mean[name] + 0.1 * grad)
                    continue
                square += np.float32(0.02) * (grad * grad - square)
                scale = np.sqrt(square / (1 - 0.98**step)) + 1e-9
                weight -= (0.01 * rate / (1 - 0.9**step) * mean[name] / scale).astype("f4")


def orthogonal(matrix: Floats) -> Floats:
    """Returns Muon's direction: the gradient with singular values close to 1 (Newton-Schulz)."""
    x = matrix / (np.linalg.norm(matrix) + 1e-7)
    if tall := x.shape[0] > x.shape[1]:
        x = x.T
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (2.0315 * square @ square - 4.775 * square) @ x
    return x.T * np.sqrt(matrix.shape[0] / matrix.shape[1]) if tall else x


def linear_layers(weights: Weights, grads: Weights) -> Callable[[Floats, str], Step]:
    """Returns a function that multiplies by the transposed weight of a name. Its backward pass adds
    the weight's gradient to `grads`."""

    def linear(x: Floats, name: str) -> Step:
        def back(dy: Floats) -> Floats:
            grads[name] = grads.get(name, 0) + dy.T @ x
            return dy @ weights[name]

        return x @ weights[name].T, back

    return linear


def softmax(x: Floats) -> Floats:
    p = np.exp(x - x.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p

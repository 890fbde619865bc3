"""When each token of a text is said, by the heads of a model of speech that follow what is heard
while it writes.

As transformers' `generate(return_token_timestamps=True)` and openai-whisper have it: weights are
normalised over the tokens, smoothed along the audio, and averaged over the heads; then dynamic time
warping (Sakoe and Chiba, 1978) finds the path through them, on which both tokens and audio only
advance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BOTH, _TOKEN, _POSITION = range(3)  # which of them a step of the path advances


def token_positions(weights: NDArray[np.float32], filter_width: int) -> NDArray[np.int64]:
    """The position of the audio at which each token that a decoder reads is past: [tokens], which
    rise, of the weights [heads, tokens, positions] of its attention. `filter_width`: of the median
    along the positions, an odd number."""
    mean = np.zeros(weights.shape[1:], np.float32)
    for of_head in weights:
        mean += median_filtered(_normalised(of_head), filter_width)
    return warped(-mean.astype(np.float64) / len(weights))


def _normalised(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each position's over the tokens; where they do not differ there is nothing to follow."""
    spread = weights.std(axis=0)
    scale = np.divide(1, spread, out=np.zeros_like(spread), where=spread > 0)
    return (weights - weights.mean(axis=0)) * scale


def median_filtered(values: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """The median of `width` values around each along the last axis, mirrored at the ends; values
    too few to be mirrored as they are."""
    half, count = width // 2, values.shape[-1]
    if count <= half:
        return values
    mirrored = np.pad(values, ((0, 0), (half, half)), mode="reflect")
    shifted = [mirrored[:, begin : begin + count] for begin in range(width)]
    # Among more than half of them neither the least nor the greatest is the median: both go and
    # another comes, until one is left.
    kept, coming = shifted[: half + 2], shifted[half + 2 :]
    while len(kept) > 1:
        kept = _without_extremes(kept) + coming[:1]
        coming = coming[1:]
    return kept[0]


def _without_extremes(values: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """Two arrays or more without the least and the greatest value at each place."""
    least, middle = values[0], []
    for each in values[1:]:
        middle.append(np.maximum(least, each))
        least = np.minimum(least, each)
    greatest, others = middle[0], []
    for each in middle[1:]:
        others.append(np.minimum(greatest, each))
        greatest = np.maximum(greatest, each)
    return others


def warped(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """Where the cheapest path from the first token and position to the last ones comes to each
    token: [tokens] positions, of cost [tokens, positions]. Sums and ties as transformers has them.
    """
    tokens, positions = cost.shape
    steps = np.empty((tokens + positions - 1, tokens), np.uint8)  # by token + position, and token
    flat = np.ascontiguousarray(cost).ravel()
    # Sums of the paths that end on the two diagonals before, behind an edge that no path crosses.
    before, last = (np.full(tokens + 1, np.inf, np.float32) for _ in range(2))
    before[0] = 0
    for diagonal in range(tokens + positions - 1):
        begin, end = max(0, diagonal - positions + 1), min(tokens, diagonal + 1)
        both, token, position = before[begin:end], last[begin:end], last[begin + 1 : end + 1]
        by_both = (both < token) & (both < position)
        by_token = (token < both) & (token < position)
        step = np.where(by_both, _BOTH, np.where(by_token, _TOKEN, _POSITION))
        steps[diagonal, begin:end] = step
        sums = np.full(tokens + 1, np.inf, np.float32)
        first, stride = begin * (positions - 1) + diagonal, max(1, positions - 1)
        own = flat[first : first + (end - begin - 1) * stride + 1 : stride]
        sums[begin + 1 : end + 1] = own + np.choose(step, (both, token, position))
        before, last = last, sums
    return _comes_to(steps, tokens, positions)


def _comes_to(steps: NDArray[np.uint8], tokens: int, positions: int) -> NDArray[np.int64]:
    found = np.zeros(tokens, np.int64)
    token, position = tokens - 1, positions - 1
    while token >= 0 and position >= 0:
        found[token] = position
        step = steps[token + position, token]
        token -= step != _POSITION
        position -= step != _TOKEN
    return found

"""Measures how well cosines of embeddings rank pairs of texts: Spearman's rank correlation (1904)
with gold scores, by which sentence embeddings are evaluated on STS-B (Reimers and Gurevych,
2019)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fusewire.parity.agreement import cosines


class PairSimilarity:
    """Spearman's correlation over embeddings of both sides, which are added in order: the first
    text of a pair, the second, the first of the next pair."""

    def __init__(self) -> None:
        self._embeddings: list[NDArray[np.float32]] = []  # [2, dim] each: ours, the reference's

    def add(self, got: NDArray[np.float32], truth: NDArray[np.float32]) -> None:
        """Adds the embeddings [dim] of one text, by both sides."""
        self._embeddings.append(np.stack([got, truth]))

    def spearman(self, gold: ArrayLike) -> tuple[float, float]:
        """Returns Spearman's correlation of our cosines with the gold scores [pairs], and of the
        reference's."""
        ours, theirs = np.stack(self._embeddings, axis=1).astype(np.float64)
        return (
            spearman(cosines(ours[0::2], ours[1::2]), gold),
            spearman(cosines(theirs[0::2], theirs[1::2]), gold),
        )


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Returns Pearson's correlation of the ranks of `a` [n] and `b` [n], where equal values have
    the mean of their ranks; NaN if either is constant or has a NaN."""
    one, other = (np.asarray(each, np.float64) for each in (a, b))
    if np.isnan(one).any() or np.isnan(other).any():
        return float("nan")
    ours, theirs = (_ranks(each) - (each.size + 1) / 2 for each in (one, other))  # with mean 0
    spread = np.sqrt((ours @ ours) * (theirs @ theirs))
    return float(ours @ theirs / spread) if spread > 0 else float("nan")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns ranks from 1; equal values have the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2
    return ranks[group]

"""Compares distributions of next tokens with those of a reference."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusewire.parity.agreement import Rows, pieces


class NextTokens:
    """Sums over positions of texts, each with the logits of both sides and the token that follows.

    Perplexity is exp of the mean negative log-likelihood of the tokens that follow (Jelinek et al.,
    1977). The divergence is Kullback and Leibler's, of the reference from ours, in nats.
    """

    def __init__(self) -> None:
        self.places = 0
        self.greedy_equal = 0  # positions where both have the same most likely token
        self._divergence = 0.0
        self._surprise = np.zeros(2)  # nats: ours, the reference's

    def add(
        self, got: NDArray[np.float32], truth: NDArray[np.float32], following: NDArray[np.int64]
    ) -> None:
        """Adds the logits [positions, vocabulary] of a text, and the tokens that follow these
        positions [positions]."""
        begin = 0
        for ours, theirs in pieces(got, truth):
            tokens = following[begin : begin + len(ours)]
            begin += len(ours)
            self._add(ours, theirs, tokens)

    def _add(self, ours: Rows, theirs: Rows, following: NDArray[np.int64]) -> None:
        numbers = ~np.isnan(ours).any(axis=1) & ~np.isnan(theirs).any(axis=1)
        self.greedy_equal += int((numbers & (ours.argmax(1) == theirs.argmax(1))).sum())
        self.places += len(ours)
        with np.errstate(invalid="ignore"):  # infinity and NaN pass through
            log_q, log_p = _log_softmax(ours), _log_softmax(theirs)
            p = np.exp(log_p)
            self._divergence += float((p * (log_p - log_q)).sum(where=p > 0))
        if np.isnan(theirs).any():
            self._divergence = np.nan
        places = np.arange(len(following))
        self._surprise -= [float(each[places, following].sum()) for each in (log_q, log_p)]

    @property
    def kl_divergence(self) -> float:
        """The mean divergence over the positions."""
        return self._divergence / self.places

    @property
    def perplexities(self) -> tuple[float, float]:
        """Our perplexity, and the reference's."""
        with np.errstate(over="ignore"):
            ours, reference = np.exp(self._surprise / self.places)
        return float(ours), float(reference)


def _log_softmax(logits: Rows) -> Rows:
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: Rows = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found

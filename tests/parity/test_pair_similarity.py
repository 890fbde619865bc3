"""Spearman's correlation, against scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fusewire.parity.pair_similarity import PairSimilarity, spearman
from scipy import stats


@pytest.mark.parametrize("kinds", [2, 3, 6, 10_000])
@pytest.mark.parametrize("count", [2, 5, 1379])
def test_ranks_with_ties_correlate_as_scipy_says(kinds, count):
    """Of values of so many kinds: of few, most are equal to others."""
    random = np.random.default_rng(count)
    a = np.append(random.integers(0, kinds, count), [0, kinds])
    b = np.append(a[:-2] + random.integers(0, kinds, count), [0.5, kinds])
    for one, other in ((a, b), (a, -b), (b, a)):
        assert spearman(one, other) == pytest.approx(stats.spearmanr(one, other)[0], abs=1e-12)


def test_only_the_order_matters():
    a = np.array([0.1, 0.4, 0.2, 0.9])
    assert spearman(a, np.exp(5 * a)) == pytest.approx(1, abs=1e-15)
    assert spearman(a, -(a**3)) == pytest.approx(-1, abs=1e-15)


def test_what_has_no_order_has_no_correlation():
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))
    assert math.isnan(spearman([1, np.nan, 1.5], [1, 2, 3]))


def test_pairs_are_two_embeddings_that_follow_each_other():
    random = np.random.default_rng(0)
    ours, theirs = random.standard_normal((2, 40, 8)).astype(np.float32)
    gold = random.integers(0, 6, 20)
    pairs = PairSimilarity()
    for got, truth in zip(ours, theirs, strict=True):
        pairs.add(got, truth)

    def expected(side: np.ndarray) -> float:
        unit = side / np.linalg.norm(side, axis=1, keepdims=True)
        return stats.spearmanr((unit[0::2] * unit[1::2]).sum(1), gold)[0]

    assert pairs.spearman(gold) == pytest.approx((expected(ours), expected(theirs)), abs=1e-9)

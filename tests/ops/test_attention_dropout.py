"""Dropout of attention's weights: the mask of csrc/core/dropout.h, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.attention import CASES, CAUSAL, Attention, attended, kept_weights, make_attention
from tests.ops.case import Operands
from tests.ops.check import check
from tests.ops.philox import dropout_factors
from tests.places import CPU, CPU_TARGETS, EVERYWHERE, GPU_FP32

PROBABILITIES = (1e-3, 0.1, 0.5, 0.9)
DROPPED = [
    Attention((1, 2, 3), 2, 8, dropout=0.5),
    Attention((127, 128, 260), 3, 64, dropout=0.1),
    Attention((130, 1), 4, 20, kv_heads=2, dropout=0.3, **CAUSAL),
    Attention((300, 17), 2, 32, left=64, right=64, dropout=0.1),
    Attention((70, 5), 4, 80, 2, (40, 300), soft_cap=3.0, biased=True, dropout=0.9),
    Attention((65, 30), 2, 128, kv_heads=1, dropout=0.2, **CAUSAL),
    Attention((90, 3), 2, 96, dropout=0.2),
]


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
@pytest.mark.parametrize("shape", DROPPED, ids=str)
def test_attention_drops_the_weights_of_the_mask(shape: Attention, place: Placement):
    check(CASES["attention"], shape, place)


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@pytest.mark.parametrize("dim", [200, 256])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_wide_heads_keep_their_precision(dim: int, dropout: float, place: Placement):
    """A score is a sum over the elements of a head."""
    check(CASES["attention"], Attention((40, 3), 2, dim, dropout=dropout), place)


@pytest.mark.parametrize("place", [CPU], indirect=True)
@pytest.mark.parametrize(
    "wrong", [{"dropout": 0.11}, {"dropout": 0.0}, {"lengths": (128, 127, 260)}], ids=str
)
def test_another_mask_is_seen(wrong: dict, place: Placement):
    """The kernel computes for another shape than the reference."""
    shape, case = DROPPED[1], CASES["attention"]

    def ours(o: Operands, arrays, shape: Attention) -> np.ndarray:
        return attended(o, arrays, shape._replace(**wrong))

    with pytest.raises(AssertionError, match="off by"):
        check(type(case)(**{**vars(case), "ours": ours}), shape, place)


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
def test_a_mask_does_not_depend_on_threads(place: Placement):
    shape = DROPPED[1]
    arrays = make_attention(np.random.default_rng(1), shape)
    whole, before = attended(Operands(place, "dense"), arrays, shape), k.num_threads()
    try:
        for threads in (1, 2, 3):
            k.set_num_threads(threads)
            np.testing.assert_array_equal(attended(Operands(place, "dense"), arrays, shape), whole)
    finally:
        k.set_num_threads(before)


@pytest.mark.parametrize("place", [*CPU_TARGETS, GPU_FP32], indirect=True)
def test_a_probability_is_a_multiple_of_1_in_65536_and_never_1(place: Placement):
    for probability in (1e-6, 1 - 1e-6):
        check(CASES["attention"], Attention((40,), 2, 32, dropout=probability), place)


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_as_many_are_kept_as_the_probability_says(probability: float):
    kept = kept_weights(Attention((1,), 16, 1, dropout=probability), 1000, 100, 600) > 0
    deviation = (probability * (1 - probability) / kept.size) ** 0.5
    assert abs(kept.mean() - (1 - probability)) < 4 * deviation
    # The means of each head, each query and each key: the bound holds for the maximum of all of
    # them.
    for axes in ((1, 2), (0, 2), (0, 1)):
        means = kept.mean(axes)
        allowed = 5 * (probability * (1 - probability) * means.size / kept.size) ** 0.5
        assert np.abs(means - (1 - probability)).max() < allowed


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.ravel() > 0, b.ravel() > 0)[0, 1])


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_neighbours_are_not_correlated(probability: float):
    rows, columns = np.arange(500), np.arange(400)

    def mask(seed: int = 5, offset: int = 9) -> np.ndarray:
        return dropout_factors(rows, columns, probability, seed, offset)

    here = mask()
    bound = 4.5 / here.size**0.5
    for distance in (1, 2, 7, 8, 9, 16):
        assert abs(correlation(here[:, distance:], here[:, :-distance])) < bound
        assert abs(correlation(here[distance:], here[:-distance])) < bound
    for other in (mask(offset=10), mask(seed=6), mask(offset=9 + 2**32), mask(seed=5 + 2**32)):
        assert abs(correlation(here, other)) < bound

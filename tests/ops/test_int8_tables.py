"""Rows of int8 tables are exactly the dequantised values, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops import int8
from tests.ops.case import Operands, normal
from tests.places import CPU, CPU_TARGETS, CPU_TARGETS_OF_PRODUCTS, Where, at

VOCABULARY, TOKENS = 70, 41  # a vocabulary slightly larger than a panel's rows
HIDDEN = (1, 3, 4, 17, 33, 384, 770)
EVERY_TARGET = pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)


def table(rng: np.random.Generator, hidden: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows of any magnitude, one of them of zeros, and their dequantised int8 values."""
    weight = normal(rng, VOCABULARY, hidden) * np.exp(3 * normal(rng, VOCABULARY, 1))
    weight[5] = 0
    rounded = int8.rounded_weight(weight)
    return weight, rounded.numbers.astype(np.float32) * rounded.scales[:, None]


def packed(place: Placement, weight: np.ndarray) -> k.Linear:
    return k.Linear(place.floats(weight), None, place.stream, format="int8")


@pytest.mark.parametrize("hidden", HIDDEN)
@EVERY_TARGET
def test_rows_are_what_the_table_stands_for(place: Placement, hidden: int):
    rng, o = np.random.default_rng(hidden), Operands(place, "strided")
    weight, meant = table(rng, hidden)
    ids = rng.integers(0, VOCABULARY, TOKENS)
    ids[:3] = 0, 5, VOCABULARY - 1
    shape, word = (TOKENS, hidden), packed(place, weight)
    got = o.result(k.embed, shape, o.int64(ids), None, word, None, 1.0)
    np.testing.assert_array_equal(got, meant[ids])

    positions, types = (rng.integers(0, 2, TOKENS, dtype=np.int32) for _ in range(2))
    others = [o.floats(normal(rng, 2, hidden)) for _ in range(2)]
    norm = [o.floats(normal(rng, hidden)) for _ in range(2)]
    of_packed, of_floats = (
        [
            o.result(k.embed, shape, o.int64(ids), o.int32(positions), each, others[0], 2.5),
            o.result(
                k.embed_layer_norm,
                shape,
                *(o.int64(ids), o.int32(positions), o.int32(types)),
                *(each, *others, *norm, 1e-12),
            ),
        ]
        for each in (word, o.floats(meant))
    )
    np.testing.assert_array_equal(of_packed, of_floats)


@pytest.mark.parametrize("packed_on", k.cpu_targets())
def test_a_table_packed_for_products_serves_every_instruction_set(packed_on: str):
    rng = np.random.default_rng(0)
    weight, meant = table(rng, 45)
    ids, x = np.arange(VOCABULARY), normal(rng, 5, 45)
    with at(Where("cpu", "float32", packed_on)) as place:
        linear = packed(place, weight)
    scores = int8.product(int8.rounded_rows(x), int8.rounded_weight(weight))
    for target in k.cpu_targets():
        with at(Where("cpu", "float32", target)) as place:
            o = Operands(place, "dense")
            rows = o.result(k.embed, meant.shape, o.int64(ids), None, linear, None, 1.0)
            np.testing.assert_array_equal(rows, meant)
            got = o.result(k.linear, (5, VOCABULARY), o.rows(x), linear, "none")
            np.testing.assert_array_equal(got, scores)


@pytest.mark.parametrize("place", CPU_TARGETS_OF_PRODUCTS, indirect=True)
def test_a_weight_with_another_bias_is_the_same_weight(place: Placement):
    rng, o = np.random.default_rng(0), Operands(place, "dense")
    weight, bias, x = normal(rng, 70, 45), normal(rng, 70), normal(rng, 5, 45)
    bare = packed(place, weight)
    biased = bare.with_bias(place.floats(bias), place.stream)
    assert biased.nbytes == 4 * 70  # the bias only
    rounded = int8.rounded_rows(x), int8.rounded_weight(weight)
    for linear, *more in ((biased, bias), (bare,)):
        got = o.result(k.linear, (5, 70), o.rows(x), linear, "none")
        np.testing.assert_array_equal(got, int8.product(*rounded, *more))
    with pytest.raises(k.Error, match=r"Linear.with_bias: bias: got float32\[45\]"):
        bare.with_bias(place.floats(x[0]), place.stream)


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_what_is_no_table_of_the_kind_is_refused(place: Placement):
    o, weight = Operands(place, "dense"), np.ones((10, 4), np.float32)
    ids = o.int64(np.array([3, 10]))
    for word, message in (
        (packed(place, weight), "embed: id: got 10, wanted 0 to 9"),
        (packed(place, weight[:, :3]), "embed: word: got rows of 3 numbers, wanted 4 as out has"),
        (k.Linear(place.floats(weight)), "embed: word: got a float32 Linear, wanted one in int8"),
        (None, "embed: word: got none, wanted a table"),
    ):
        with pytest.raises(k.Error, match=message):
            k.embed(place.empty(2, 4), ids, None, word, None, 1.0, place.stream)


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_a_row_that_is_not_finite_is_not_made_plausible(place: Placement):
    o, weight = Operands(place, "dense"), np.ones((10, 4), np.float32)
    weight[3, 1] = np.inf
    ids = o.int64(np.array([2, 3]))
    got = o.result(k.embed, (2, 4), ids, None, packed(place, weight), None, 1.0)
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()

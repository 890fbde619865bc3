"""GEMMs of int8 rows with 4-bit weights. Bitwise equal are: without an activation, the whole result
to numpy's (integer sums, then fp32 rounded at each step); with one, every instruction set to every
other; and a row to itself in any batch, on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops import int8
from tests.ops.activations import ACTIVATIONS
from tests.ops.case import LAYOUTS, Operands, another_number_of_threads, normal
from tests.ops.test_linear_int4 import CPU_SHAPES, Codes, codes_of
from tests.places import CPU, CPU_TARGETS_OF_PRODUCTS, GPU_HALVES, Where, at

EVERY_TARGET = pytest.mark.parametrize("place", CPU_TARGETS_OF_PRODUCTS, indirect=True)
LONGEST_SUM = 256  # inputs whose products are accumulated in integers


def linear_of(place: Placement, codes: Codes, bias=None, zeros: bool = True) -> k.Linear:
    return codes.linear(place, bias, zeros, "w4a8")


def run(o: Operands, x: np.ndarray, linear: k.Linear, activation: str = "none") -> np.ndarray:
    return o.result(k.linear, (len(x), linear.out_features), o.rows(x), linear, activation)


def product(x: int8.Rounded, codes: Codes, bias=None, residual=None) -> np.ndarray:
    """Returns float32[rows, out_features], with every operation rounded in this order."""
    inner = codes.codes.shape[1]
    group = inner // codes.scales.shape[1]
    size = min(group, LONGEST_SUM)
    total = np.zeros((len(x.scales), len(codes.codes)), np.float32)
    for begin in range(0, inner, size):
        own, of = slice(begin, begin + size), begin // group
        numbers = codes.codes[:, own].astype(np.int64) - codes.zeros[:, of, None]
        total += (x.numbers[:, own] @ numbers.T).astype(np.float32) * codes.scales[:, of]
    out = total * x.scales[:, None]
    if bias is not None:
        out = out + bias
    return out if residual is None else out + residual


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", CPU_SHAPES)
@EVERY_TARGET
def test_a_product_is_that_of_the_integers(
    place: Placement, shape: tuple, layout: str, symmetric: bool
):
    (m, inner, out, group), o = shape, Operands(place, layout)
    rng, codes = np.random.default_rng(m), codes_of(inner, out, group, symmetric)
    x, bias, residual = normal(rng, m, inner), normal(rng, out), normal(rng, m, out)
    bare, linear = (linear_of(place, codes, b, zeros=not symmetric) for b in (None, bias))
    rounded = int8.rounded_rows(x)
    np.testing.assert_array_equal(run(o, x, bare), product(rounded, codes))
    np.testing.assert_array_equal(run(o, x, linear), product(rounded, codes, bias))
    expected = product(rounded, codes, bias, residual)
    added = o.result(k.linear_add, (m, out), o.rows(x), linear, o.rows(residual))
    np.testing.assert_array_equal(added, expected)
    in_place = o.rows(residual)
    k.linear_add(in_place, o.rows(x), linear, in_place, place.stream)
    np.testing.assert_array_equal(o.read(in_place), expected)


@EVERY_TARGET
@pytest.mark.parametrize("zero", [0, 15])
def test_the_largest_sums_fit(place: Placement, zero: int):
    """All terms have one sign, over the longest integer sum."""
    inner = 2 * LONGEST_SUM
    scales, zeros = np.ones((33, 1), np.float32), np.full((33, 1), zero, np.uint8)
    codes = Codes(np.full((33, inner), 15 - zero, np.uint8), scales, zeros)
    x, o = np.full((3, inner), -1, np.float32), Operands(place, "dense")
    got = run(o, x, linear_of(place, codes))
    np.testing.assert_array_equal(got, product(int8.rounded_rows(x), codes))
    assert abs(got[0, 0]) == pytest.approx(15 * inner, rel=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_instruction_set_gives_the_same_bits(activation: str):
    codes, rng = codes_of(320, 97, 64), np.random.default_rng(0)
    x, bias = normal(rng, 58, 320), normal(rng, 97)
    results = []
    for target in k.cpu_targets():
        with at(Where("cpu", "float32", target)) as place:
            results.append(
                run(Operands(place, "dense"), x, linear_of(place, codes, bias), activation)
            )
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@EVERY_TARGET
@pytest.mark.parametrize("group", [0, 32, 128, 512])
def test_a_row_has_the_same_bits_in_any_batch_on_any_number_of_threads(
    place: Placement, group: int
):
    codes, o = codes_of(1024, 130, group), Operands(place, "dense")
    linear, x = linear_of(place, codes), normal(np.random.default_rng(1), 130, 1024)
    whole = run(o, x, linear)
    for count in (1, 2, 3, 4, 5, 12, 13, 57):
        np.testing.assert_array_equal(run(o, x[:count], linear), whole[:count])
    with another_number_of_threads():
        np.testing.assert_array_equal(run(o, x, linear), whole)


@EVERY_TARGET
@pytest.mark.parametrize("count", [4, 100])
def test_what_is_no_number_stays_in_its_row(place: Placement, count: int):
    codes, o = codes_of(768, 96, 128), Operands(place, "dense")
    rng = np.random.default_rng(count)
    x, bias = normal(rng, count, 768), normal(rng, 96)
    linear = linear_of(place, codes, bias)
    right = run(o, x, linear)
    x[1, 5], x[2], x[3, 0] = np.nan, 0, np.inf
    got = run(o, x, linear)
    assert np.isnan(got[[1, 3]]).all()
    np.testing.assert_array_equal(got[2], bias)
    np.testing.assert_array_equal(np.delete(got, [1, 2, 3], 0), np.delete(right, [1, 2, 3], 0))


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_other_formats_are_no_weights_of_4_bits(place: Placement):
    codes = codes_of(64, 16, 32)
    nibbles, scales = place.exact(codes.nibbles(), np.uint8), place.exact(codes.scales, np.float32)
    with pytest.raises(k.Error, match="format: got int8 on cpu, wanted one of 4 bits"):
        k.Linear.of_int4(nibbles, scales, stream=place.stream, format="int8")
    weight = place.floats(np.ones((16, 32), np.float32))
    with pytest.raises(k.Error, match="format: got w4a8, whose numbers come with their scales"):
        k.Linear(weight, None, place.stream, format="w4a8")


@pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
def test_gpus_have_none(place: Placement):
    codes = codes_of(64, 16, 32)
    with pytest.raises(k.Error, match="format: got w4a8 on cuda:0, wanted one of 4 bits"):
        linear_of(place, codes)

"""GEMMs with int8 weights on GPUs: bitwise equal to those of integers in numpy, with rows and
channels rounded as on the CPU, whatever tile computes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops import int8
from tests.ops.case import LAYOUTS, Operands, normal
from tests.ops.test_linear_codes import operands
from tests.ops.test_linear_float8 import SHAPES as FLOAT8_SHAPES
from tests.places import GPU_HALVES, rounded
from tests.tolerance import allowed_error

INT8_GPU = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
# The shapes of the other 8-bit formats, those of tiles that they do not use, and widths that
# Hopper's own kernels do not support, so that each tile of the kernels for all GPUs is used there
# too.
SHAPES = [*FLOAT8_SHAPES, (40, 4096, 1024), (6000, 768, 3072), (200, 776, 301), (2100, 520, 1001)]


def linear_of(place: Placement, weight: np.ndarray, bias: np.ndarray | None = None) -> k.Linear:
    given = None if bias is None else place.floats(bias)
    return k.Linear(place.floats(weight), given, place.stream, format="int8")


def exact_sums(x: int8.Rounded, weight: int8.Rounded) -> np.ndarray:
    """Returns the integer sums, computed in fp64, which represents them exactly."""
    return (
        torch.from_numpy(x.numbers).double() @ torch.from_numpy(weight.numbers).double().T
    ).numpy()


def results(
    x: int8.Rounded,
    weight: int8.Rounded,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the result in fp32, with every operation rounded in this order."""
    out = exact_sums(x, weight).astype(np.float32) * x.scales[:, None] * weight.scales
    out = out if bias is None else out + bias
    return out if residual is None else out + residual


@INT8_GPU
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_integers(shape: tuple, place: Placement, layout: str):
    (m, inner, n), o = shape, Operands(place, layout)
    x, weight, bias = operands(place, m, inner, n)
    residual = rounded(normal(np.random.default_rng(1), m, n), place.dtype)
    numbers = int8.rounded_rows(x), int8.rounded_weight(weight)
    bare, linear = linear_of(place, weight), linear_of(place, weight, bias)

    def expect(got: np.ndarray, *more) -> None:
        np.testing.assert_array_equal(got, rounded(results(*numbers, *more), place.dtype))

    expect(o.result(k.linear, (m, n), o.rows(x), bare, "none"))
    expect(o.result(k.linear, (m, n), o.rows(x), linear, "none"), bias)
    added = o.result(k.linear_add, residual.shape, o.rows(x), linear, o.rows(residual))
    expect(added, bias, residual)
    in_place = o.rows(residual)
    k.linear_add(in_place, o.rows(x), linear, in_place, place.stream)
    expect(o.read(in_place), bias, residual)
    for name, activate in (("gelu_erf", torch.nn.functional.gelu), ("relu", torch.relu)):
        before = torch.from_numpy(results(*numbers, bias))
        truth, once = activate(before.double()).numpy(), activate(before)
        usual = torch.from_numpy(rounded(once.numpy(), place.dtype)).double().numpy()
        got = o.result(k.linear, (m, n), o.rows(x), linear, name)
        assert not allowed_error(truth, usual, place.dtype, 1).excess(got)


@INT8_GPU
def test_the_largest_sums_are_exact(place: Placement):
    """-128, which checkpoints may have, over nearly as many inputs as are allowed."""
    inner, n = (1 << 17) - 16, 8
    codes = np.full((n, inner), 0x80, np.uint8)
    codes[1::2] = 0x7F
    scales = np.full(n, 1 / 128, np.float32)
    linear = place.codes_linear("int8", codes, scales, 0.0, None, "weight")
    x = np.ones((3, inner), np.float32)
    o = Operands(place, "dense")
    got = o.result(k.linear, (3, n), o.rows(x * 2**-10), linear, "none")
    numbers = int8.Rounded(codes.view(np.int8).astype(np.int64), scales)
    expected = results(int8.rounded_rows(x * np.float32(2**-10)), numbers)
    np.testing.assert_array_equal(got, rounded(expected, place.dtype))


@INT8_GPU
def test_a_row_has_the_same_bits_in_any_batch(place: Placement):
    """It does not depend on the tiles and slices of k that were fastest for the number of rows."""
    x, weight, bias = operands(place, 2100, 1024, 512)
    o, linear = Operands(place, "dense"), linear_of(place, weight, bias)
    for activation in ("none", "gelu_erf", "gelu_tanh"):
        whole = o.result(k.linear, (2100, 512), o.rows(x), linear, activation)
        for count in (1, 7, 16, 33, 64, 100, 129, 300, 1000):
            some = o.result(k.linear, (count, 512), o.rows(x[:count]), linear, activation)
            np.testing.assert_array_equal(some, whole[:count])


@INT8_GPU
def test_rows_too_small_for_a_scale_are_zeros(place: Placement):
    if place.dtype == "float16":
        pytest.skip("float16 has no such numbers")
    x, weight, bias = operands(place, 3, 64, 40)
    x[1] = 1e-37
    o = Operands(place, "dense")
    got = o.result(k.linear, (3, 40), o.rows(x), linear_of(place, weight, bias), "none")
    np.testing.assert_array_equal(got[1], bias)


@INT8_GPU
def test_what_was_not_timed_is_computed_alike(place: Placement):
    """On a stream that does not tune, one of our kernels computes it, as no library's has scales by
    row."""
    place.stream.synchronize()
    x, weight, bias = operands(place, 200, 264, 136)  # a shape that no other test has
    other = Placement(place.device, place.dtype, "int8")
    linear = other.layer_linear(weight, bias, "weight")
    o = Operands(other, "dense")
    got = o.result(k.linear, (200, 136), o.rows(x), linear, "none")
    expected = results(int8.rounded_rows(x), int8.rounded_weight(weight), bias)
    np.testing.assert_array_equal(got, rounded(expected, place.dtype))
    assert linear.format == "int8"
    assert linear.nbytes == 136 * 272 + 136 * 4 + 136 * 2

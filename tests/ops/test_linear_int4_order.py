"""GEMMs with 4-bit weights whose inputs have an order: those of rows in that order."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import int8
from tests.ops.case import LAYOUTS, Operands, another_number_of_threads, normal
from tests.ops.test_linear_int4 import (
    ON_CPUS,
    ON_GPUS,
    PLACES,
    Codes,
    codes_of,
    expect_the_product,
    operands,
)
from tests.ops.test_linear_w4a8 import EVERY_TARGET, linear_of, product, run

# The last one has more rows than are permuted at once.
CPU_SHAPES = [(1, 4096, 1000, 128), (3, 64, 16, 64), (13, 160, 33, 0), (58, 320, 97, 64)]
CPU_SHAPES += [(129, 768, 768, 64), (500, 96, 40, 32)]
GPU_SHAPES = [(1, 4096, 1000, 128), (1, 32, 5, 32), (5, 11008, 264, 128), (17, 14336, 64, 128)]
GPU_SHAPES += [(64, 352, 1040, 32), (257, 768, 768, 64), (300, 1024, 97, 32), (700, 608, 4104, 32)]
GPU_SHAPES += [(260, 8192, 6000, 128), (600, 65536, 40, 128)]


@ON_CPUS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("shape", CPU_SHAPES)
def test_a_product_of_a_cpu_is_that_of_the_numbers(
    shape: tuple, place: Placement, layout: str, symmetric: bool
):
    expect_the_product(shape, place, layout, symmetric, ordered=True)


@ON_GPUS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", GPU_SHAPES)
def test_a_product_of_a_gpu_is_that_of_the_numbers(shape: tuple, place: Placement, layout: str):
    expect_the_product(shape, place, layout, ordered=True)


@PLACES
@pytest.mark.parametrize("count", [1, 2, 16, 17, 60, 129, 300])
def test_the_bits_are_those_of_rows_in_the_order(place: Placement, count: int):
    plain, o = codes_of(1024, 136, 128), Operands(place, "dense")
    ordered = plain.shuffled()
    x, bias, _ = operands(place, count, 1024, 136)
    results = [
        o.result(k.linear, (count, 136), o.rows(rows), codes.linear(place, bias), "silu")
        for codes, rows in ((ordered, x), (plain, x[:, ordered.order]))
    ]
    np.testing.assert_array_equal(*results)


@EVERY_TARGET
@settings(max_examples=25)
@given(data=st.data())
def test_products_of_any_shape(place: Placement, data):
    """The results are bitwise equal: in float32 to those of permuted rows, in int8 to those of
    integers."""
    group = data.draw(st.sampled_from([0, 32, 64, 128, 512]))
    inner = (group or 32) * data.draw(st.integers(1, 6))
    m, out = data.draw(st.integers(1, 130)), data.draw(st.integers(1, 70))
    o = Operands(place, data.draw(st.sampled_from(LAYOUTS)))
    codes = codes_of(inner, out, group, data.draw(st.booleans()))
    order = np.array(data.draw(st.permutations(range(inner))))
    rng = np.random.default_rng(m)
    x, bias = normal(rng, m, inner), normal(rng, out)
    ordered = codes._replace(order=order)
    in_floats = run(o, x, ordered.linear(place, bias))
    of_rows = run(o, x[:, order], codes.linear(place, bias))
    np.testing.assert_array_equal(in_floats, of_rows)
    in_integers = run(o, x, linear_of(place, ordered, bias))
    of_integers = product(int8.rounded_rows(x[:, order]), codes, bias)
    np.testing.assert_array_equal(in_integers, of_integers)


@ON_CPUS
@pytest.mark.parametrize("stored", ["int4", "w4a8"])
def test_a_row_has_the_same_bits_in_any_batch_on_any_number_of_threads(
    place: Placement, stored: str
):
    codes, o = codes_of(256, 66, 64).shuffled(), Operands(place, "dense")
    linear, x = codes.linear(place, stored=stored), operands(place, 470, 256, 66)[0]
    whole = run(o, x, linear)
    for first, last in ((0, 1), (0, 2), (1, 6), (440, 470), (0, 448), (3, 460)):
        np.testing.assert_array_equal(run(o, x[first:last], linear), whole[first:last])
    with another_number_of_threads():
        np.testing.assert_array_equal(run(o, x, linear), whole)


@PLACES
def test_an_order_takes_4_bytes_an_input(place: Placement):
    codes = codes_of(256, 100, 32)
    plain, ordered = codes.linear(place), codes.shuffled().linear(place)
    assert ordered.nbytes == plain.nbytes + 4 * 256


def with_order(codes: Codes, order: list[int]) -> Codes:
    return codes._replace(order=np.array(order))


@PLACES
def test_what_is_no_order_is_refused(place: Placement):
    codes, right = codes_of(64, 16, 32), list(range(64))
    for wrong, at in (([*right[:9], 64, *right[10:]], 9), ([*right[:9], -1, *right[10:]], 9)):
        named = rf"order\[{at}\]: got {wrong[at]}, wanted each of 0..63 once"
        with pytest.raises(k.Error, match=named):
            with_order(codes, wrong).linear(place)
    with pytest.raises(k.Error, match=r"order\[63\]: got 0, wanted each of 0..63 once"):
        with_order(codes, [*right[:63], 0]).linear(place)
    with pytest.raises(
        k.Error, match=r"order: got int32\[63\] on cpu, wanted int32\[in_features=64"
    ):
        with_order(codes, right[:63]).linear(place)

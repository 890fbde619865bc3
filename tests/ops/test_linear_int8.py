"""GEMMs with int8 weights. Bitwise equal are: without an activation, the whole result to numpy's
(integer sums, then fp32 rounded at each step); with one, every instruction set to every other; and
a row to itself in any batch, on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops import int8
from tests.ops.activations import ACTIVATIONS
from tests.ops.case import LAYOUTS, Operands, normal
from tests.places import CPU, CPU_TARGETS_OF_PRODUCTS, Where, at

# (rows, in_features, out_features): sizes around a group of 4, a register, a panel, a block, a
# task.
SHAPES = [
    (1, 1, 1),
    (2, 3, 33),
    (5, 31, 3),
    (13, 33, 31),
    (15, 770, 97),
    (70, 770, 770),
    (57, 64, 1),
    (3, 3072, 64),
]
EVERY_TARGET = pytest.mark.parametrize("place", CPU_TARGETS_OF_PRODUCTS, indirect=True)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def linear_of(place: Placement, weight: np.ndarray, bias=None, scales=None) -> k.Linear:
    floats = [None if array is None else place.floats(array) for array in (weight, bias, scales)]
    return k.Linear(*floats[:2], place.stream, format="int8", scales=floats[2])


def run(o: Operands, x: np.ndarray, linear: k.Linear, activation: str = "none") -> np.ndarray:
    return o.result(k.linear, (len(x), linear.out_features), o.rows(x), linear, activation)


def expect_the_product(place: Placement, layout: str, reference=int8.product) -> None:
    for m, inner, n in SHAPES:
        rng, o = np.random.default_rng(m), Operands(place, layout)
        x, weight, bias = normal(rng, m, inner), normal(rng, n, inner), normal(rng, n)
        residual = normal(rng, m, n)
        linear, bare = linear_of(place, weight, bias), linear_of(place, weight)
        rounded = int8.rounded_rows(x), int8.rounded_weight(weight)
        np.testing.assert_array_equal(run(o, x, bare), reference(*rounded))
        np.testing.assert_array_equal(run(o, x, linear), reference(*rounded, bias))
        expected = reference(*rounded, bias, residual)
        added = o.result(k.linear_add, (m, n), o.rows(x), linear, o.rows(residual))
        np.testing.assert_array_equal(added, expected)
        in_place = o.rows(residual)
        k.linear_add(in_place, o.rows(x), linear, in_place, place.stream)
        np.testing.assert_array_equal(o.read(in_place), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@EVERY_TARGET
def test_a_product_is_that_of_the_integers(place: Placement, layout: str):
    expect_the_product(place, layout)


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_sums_that_start_wrong_are_seen(place: Placement):
    def started_one_off(x: int8.Rounded, weight: int8.Rounded, *rest) -> np.ndarray:
        """Emulates sums over the weight's bytes as the codes plus 127."""
        return int8.product(x, weight._replace(numbers=weight.numbers + 1), *rest)

    with pytest.raises(AssertionError, match="Mismatched elements"):
        expect_the_product(place, "dense", started_one_off)


@EVERY_TARGET
def test_the_largest_sums_fit(place: Placement):
    """All terms have one sign: sums of neighbouring products exceed 16 bits, and whole sums 24."""
    for sign in (1, -1):
        x, weight = np.full((3, 4100), 5, np.float32), np.full((35, 4100), sign * 3, np.float32)
        expected = int8.product(int8.rounded_rows(x), int8.rounded_weight(weight))
        got = run(Operands(place, "dense"), x, linear_of(place, weight))
        np.testing.assert_array_equal(got, expected)


@EVERY_TARGET
def test_halves_are_rounded_to_even(place: Placement):
    x = np.array([[127, 0.5, 1.5, -0.5, -2.5, 126.5]], np.float32)
    o, eye = Operands(place, "dense"), np.eye(6, dtype=np.float32)
    even = np.array([[127, 0, 2, 0, -2, 126]], np.float32)
    np.testing.assert_array_equal(run(o, x, linear_of(place, 127 * eye)), even * 127)
    np.testing.assert_array_equal(run(o, np.ones((1, 1), np.float32), linear_of(place, x.T)), x)
    by_columns = run(o, 127 * eye, linear_of(place, x))
    np.testing.assert_array_equal(by_columns, even.T * 127)


@EVERY_TARGET
def test_scales_may_be_given(place: Placement, rng: np.random.Generator):
    """A checkpoint's integers are kept exactly, -128 among them; values beyond a scale's range
    saturate."""
    integers = rng.integers(-128, 128, (70, 45))
    integers[:, 0] = -128
    scales = np.exp(normal(rng, 70))
    x, o = normal(rng, 9, 45), Operands(place, "dense")
    given = linear_of(place, integers.astype(np.float32) * scales[:, None], scales=scales)
    expected = int8.product(int8.rounded_rows(x), int8.Rounded(integers, scales))
    np.testing.assert_array_equal(run(o, x, given), expected)

    weight = normal(rng, 70, 45)
    scales = int8.scales_of(weight) / 2
    clipped = int8.rounded_weight(weight, scales)
    assert (np.abs(clipped.numbers) >= 127).mean() > 0.02
    expected = int8.product(int8.rounded_rows(x), clipped)
    np.testing.assert_array_equal(run(o, x, linear_of(place, weight, scales=scales)), expected)


@pytest.mark.parametrize("transposed", [False, True])
@EVERY_TARGET
def test_integers_may_be_given_themselves(
    place: Placement, transposed: bool, rng: np.random.Generator
):
    """Each output has its own scale, of any magnitude and sign."""
    o = Operands(place, "dense")
    for n, inner in [(1, 1), (33, 17), (70, 45), (97, 770)]:
        integers = rng.integers(-128, 128, (n, inner))
        scales = np.exp(5 * normal(rng, n)) * rng.choice([-1, 1], n).astype(np.float32)
        stored = np.ascontiguousarray(integers.T if transposed else integers)
        linear = k.Linear(
            k.Tensor.from_numpy(stored.astype(np.int8).view(np.uint8)),
            place.floats(bias := normal(rng, n)),
            place.stream,
            transposed=transposed,
            format="int8",
            scales=place.floats(scales),
        )
        x = normal(rng, 9, inner)
        expected = int8.product(int8.rounded_rows(x), int8.Rounded(integers, scales), bias)
        np.testing.assert_array_equal(run(o, x, linear), expected)


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_integers_need_scales_that_are_numbers(place: Placement):
    numbers = k.Tensor.from_numpy(np.ones((4, 8), np.uint8))
    for format_, scales, message in (
        ("int8", None, "weight: got uint8 without scales in int8, wanted scales and the format"),
        ("float32", None, "weight: got uint8 without scales in float32, wanted scales and"),
        ("bfloat16", [1, 1, 1, 1], "weight: got uint8 in bfloat16, wanted scales and the format"),
        ("int8", [1, 1, 1], r"scales: got float32\[3\]"),
    ):
        given = None if scales is None else place.floats(np.array(scales, np.float32))
        with pytest.raises(k.Error, match=message):
            k.Linear(numbers, None, place.stream, format=format_, scales=given)
    odd = place.floats(np.array([-np.inf, np.nan, np.inf, 2], np.float32))
    linear = k.Linear(numbers, None, place.stream, format="int8", scales=odd)
    (got,) = run(Operands(place, "dense"), np.ones((1, 8), np.float32), linear)
    assert np.isnan(got[:3]).all()
    assert np.abs(got[3] - 16) < 1e-5
    with pytest.raises(k.Error, match="weight: got uint8, wanted floats"):
        linear.refresh(numbers)


@EVERY_TARGET
def test_a_transposed_weight_gives_the_same_bits(place: Placement, rng: np.random.Generator):
    o = Operands(place, "dense")
    for n, inner in [(1, 1), (33, 17), (97, 770), (770, 31)]:
        weight, scales = normal(rng, n, inner), place.floats(np.exp(normal(rng, n)))
        x = normal(rng, 5, inner)
        for given in (None, scales):
            straight, turned = (
                k.Linear(
                    place.floats(array),
                    None,
                    place.stream,
                    transposed=transposed,
                    format="int8",
                    scales=given,
                )
                for array, transposed in ((weight, False), (weight.T.copy(), True))
            )
            np.testing.assert_array_equal(run(o, x, turned), run(o, x, straight))


@EVERY_TARGET
def test_a_weight_packed_anew_has_scales_of_its_own(place: Placement, rng: np.random.Generator):
    o, x = Operands(place, "dense"), normal(rng, 5, 45)
    old, new = normal(rng, 70, 45), 7 * normal(rng, 70, 45)
    linear = linear_of(place, old, scales=int8.scales_of(old))
    linear.refresh(place.floats(new), None, place.stream)
    expected = int8.product(int8.rounded_rows(x), int8.rounded_weight(new))
    np.testing.assert_array_equal(run(o, x, linear), expected)


@EVERY_TARGET
def test_the_error_is_what_the_scales_imply(place: Placement, rng: np.random.Generator):
    """Rows have any magnitude, and each is checked by its own scale."""
    x = normal(rng, 20, 770) * np.exp(5 * normal(rng, 20, 1))
    weight = normal(rng, 97, 770) * np.exp(5 * normal(rng, 97, 1))
    error = np.abs(
        run(Operands(place, "dense"), x, linear_of(place, weight))
        - x.astype(np.float64) @ weight.T.astype(np.float64)
    )
    bound = int8.error_bound(int8.rounded_rows(x), int8.rounded_weight(weight))
    assert (error <= bound).all()
    assert error.max() > 0


@EVERY_TARGET
def test_a_row_does_not_depend_on_its_batch_nor_on_threads(
    place: Placement, rng: np.random.Generator
):
    o, threads = Operands(place, "dense"), k.num_threads()
    for n, inner in [(97, 100), (770, 770)]:
        linear, x = linear_of(place, normal(rng, n, inner), normal(rng, n)), normal(rng, 120, inner)
        whole = run(o, x, linear, "gelu_erf")
        try:
            for count in (1, 3):
                k.set_num_threads(count)
                for rows in (1, 2, 4, 5, 12, 13, 14, 15, 28, 29, 56, 57, 120):
                    np.testing.assert_array_equal(
                        run(o, x[:rows], linear, "gelu_erf"), whole[:rows]
                    )
        finally:
            k.set_num_threads(threads)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_instruction_set_gives_the_same_bits(activation: str, rng: np.random.Generator):
    weight, bias = normal(rng, 97, 770), normal(rng, 97)
    x = normal(rng, 60, 770) / np.float32(5)
    results = []
    for target in k.cpu_targets():
        with at(Where("cpu", "float32", target)) as place:
            linear = linear_of(place, weight, bias)
            results.append(run(Operands(place, "dense"), x, linear, activation))
            assert k.cpu_target() == target
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("packed_on", k.cpu_targets())
def test_a_packed_weight_serves_every_instruction_set(packed_on: str, rng: np.random.Generator):
    weight, x = normal(rng, 97, 45), normal(rng, 5, 45)
    with at(Where("cpu", "float32", packed_on)) as place:
        linear = linear_of(place, weight)
    expected = int8.product(int8.rounded_rows(x), int8.rounded_weight(weight))
    for target in k.cpu_targets():
        with at(Where("cpu", "float32", target)) as place:
            np.testing.assert_array_equal(run(Operands(place, "dense"), x, linear), expected)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@EVERY_TARGET
def test_what_is_not_finite_is_not_made_plausible(
    place: Placement, broken: float, rng: np.random.Generator
):
    o, x, weight = Operands(place, "dense"), normal(rng, 20, 45), normal(rng, 70, 45)
    whole = run(o, x, linear_of(place, weight))
    for column in (3, 44):  # within the registers, and beyond the last whole one
        wrong_x, wrong_weight = x.copy(), weight.copy()
        wrong_x[4, column] = wrong_weight[50, column] = broken
        for activation in ACTIVATIONS:
            got = run(o, wrong_x, linear_of(place, weight), activation)
            assert not np.isfinite(got[4]).any()
            assert np.isfinite(np.delete(got, 4, 0)).all()
        others = np.delete(run(o, wrong_x, linear_of(place, weight)), 4, 0)
        np.testing.assert_array_equal(others, np.delete(whole, 4, 0))
        for scales in (None, np.ones(70, np.float32)):
            got = run(o, x, linear_of(place, wrong_weight, scales=scales))
            assert not np.isfinite(got[:, 50]).any()
            assert np.isfinite(np.delete(got, 50, 1)).all()


@EVERY_TARGET
def test_a_scale_that_cannot_tell_a_row_is_not_made_plausible(place: Placement):
    weight, x = np.ones((6, 4), np.float32), np.ones((1, 4), np.float32)
    weight[5] = 0
    scales = np.array([0, -1, np.nan, np.inf, 1, 0], np.float32)
    (got,) = run(Operands(place, "dense"), x, linear_of(place, weight, scales=scales))
    assert np.isnan(got[:4]).all()
    assert np.abs(got[4] - 4) < 1e-6
    assert got[5] == 0  # a scale of 0 gives zeros


@EVERY_TARGET
def test_rows_of_zeros_and_of_next_to_nothing_give_zeros(
    place: Placement, rng: np.random.Generator
):
    x, weight = normal(rng, 6, 45), normal(rng, 70, 45)
    x[2], x[4] = 0, 1e-40 * x[4]
    weight[50], weight[60] = 0, 1e-40 * weight[60]
    got = run(Operands(place, "dense"), x, linear_of(place, weight))
    zero_rows, zero_columns = got[[2, 4]], got[:, [50, 60]]
    assert not zero_rows.any()
    assert not zero_columns.any()
    assert np.delete(np.delete(got, [2, 4], 0), [50, 60], 1).all()


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_what_it_holds_is_a_byte_a_number_and_a_scale_a_row(place: Placement):
    weight, bias = np.zeros((64, 48), np.float32), np.zeros(64, np.float32)
    assert linear_of(place, weight).nbytes == 64 * 48 + 4 * 64
    assert linear_of(place, weight, bias).nbytes == 64 * 48 + 2 * 4 * 64
    assert linear_of(place, np.zeros((33, 5), np.float32)).nbytes == 64 * 8 + 4 * 33
    assert linear_of(place, weight).format == "int8"


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_more_inputs_than_sums_of_32_bits_hold_are_refused(place: Placement):
    with pytest.raises(k.Error, match="in_features: got 131073 of an int8 weight, wanted at most"):
        linear_of(place, np.zeros((1, 131073), np.float32))

"""GEMMs with weights packed in bfloat16, on every instruction set of this machine's CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.case import LAYOUTS, Operands, normal
from tests.places import CPU_TARGETS, CPU_TARGETS_OF_PRODUCTS, Where, at, rounded
from tests.tolerance import Allowed, allowed_error

# (tokens, in_features, out_features): k odd, within a chain of sums and beyond it.
SHAPES = [(1, 1, 1), (5, 3, 31), (15, 33, 33), (16, 768, 65), (70, 770, 97), (113, 769, 100)]


def operands(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng, (m, inner, out) = np.random.default_rng(0), shape
    return normal(rng, m, inner), normal(rng, out, inner), normal(rng, out), normal(rng, m, out)


def packed(place: Placement, weight: np.ndarray, bias: np.ndarray | None = None) -> k.Linear:
    given = None if bias is None else place.floats(bias)
    return k.Linear(place.floats(weight), given, place.stream, format="bfloat16")


def product(o: Operands, x: np.ndarray, linear: k.Linear) -> np.ndarray:
    return o.result(k.linear, (len(x), linear.out_features), o.rows(x), linear, "none")


def as_multiplied(x: np.ndarray) -> np.ndarray:
    """Returns x as the current target multiplies it: AVX512_BF16 rounds it to bfloat16."""
    return rounded(x, "bfloat16") if k.cpu_target() == "avx512_bf16" else x


def allowed(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, residual: np.ndarray) -> Allowed:
    """Products of these operands are accumulated in fp32: returns the allowed error of an fp32
    GEMM."""

    def of(dtype: torch.dtype) -> np.ndarray:
        x_, w, b, r = (torch.from_numpy(a).to(dtype) for a in (x, weight, bias, residual))
        return (F.linear(x_, w, b) + r).double().numpy()

    return allowed_error(of(torch.float64), of(torch.float32), "float32", x.shape[1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", CPU_TARGETS_OF_PRODUCTS, indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_rounded_operands(shape: tuple, place: Placement, layout: str):
    o, (x, weight, bias, residual) = Operands(place, layout), operands(shape)
    linear = packed(place, weight, bias)
    got = o.result(k.linear_add, residual.shape, o.rows(x), linear, o.rows(residual))
    right = allowed(as_multiplied(x), rounded(weight, "bfloat16"), bias, residual)
    assert not right.excess(got)


@pytest.mark.parametrize("place", CPU_TARGETS_OF_PRODUCTS, indirect=True)
def test_weights_that_are_rounded_toward_zero_or_not_at_all_are_told_apart(place: Placement):
    o, (x, weight, bias, residual) = Operands(place, "dense"), operands((16, 768, 65))
    linear = packed(place, weight, bias)
    got = o.result(k.linear_add, residual.shape, o.rows(x), linear, o.rows(residual))
    cut = (weight.view(np.uint32) & 0xFFFF0000).view(np.float32)
    for wrong in (cut, weight):
        assert allowed(as_multiplied(x), wrong, bias, residual).excess(got)


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_widened_weights_give_the_bits_of_fp32_weights(shape: tuple, place: Placement):
    o, (x, weight, bias, _) = Operands(place, "dense"), operands(shape)
    wide = k.Linear(place.floats(rounded(weight, "bfloat16")), place.floats(bias), place.stream)
    narrow = packed(place, weight, bias)
    for activation in ("none", "gelu_erf"):
        arguments = (k.linear, (len(x), shape[2]), o.rows(x))
        np.testing.assert_array_equal(
            o.result(*arguments, narrow, activation), o.result(*arguments, wide, activation)
        )


@pytest.mark.parametrize("place", CPU_TARGETS_OF_PRODUCTS, indirect=True)
def test_weights_are_rounded_to_the_nearest_with_ties_to_even(place: Placement):
    bits = np.arange(0x3F7F0000, 0x3F830000, 0x1000, dtype=np.uint32)
    weight = np.concatenate([bits, bits | 1, bits | 0x80000000]).view(np.float32).reshape(-1, 8)
    got = product(Operands(place, "dense"), np.eye(8, dtype=np.float32), packed(place, weight))
    np.testing.assert_array_equal(got.T, rounded(weight, "bfloat16"))


@pytest.mark.parametrize("place", CPU_TARGETS_OF_PRODUCTS, indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_transposed_weight_and_one_packed_anew_give_the_same_bits(shape: tuple, place: Placement):
    o, (x, weight, _, _) = Operands(place, "dense"), operands(shape)
    want = product(o, x, packed(place, weight))
    turned = k.Linear(
        place.floats(weight.T.copy()), None, place.stream, transposed=True, format="bfloat16"
    )
    np.testing.assert_array_equal(product(o, x, turned), want)
    again = packed(place, -2 * weight + 1)
    again.refresh(place.floats(weight), None, place.stream)
    np.testing.assert_array_equal(product(o, x, again), want)


@pytest.mark.parametrize("packed_on", k.cpu_targets())
@pytest.mark.parametrize("transposed", [False, True])
def test_a_packed_weight_serves_every_instruction_set(packed_on: str, transposed: bool):
    x, weight, bias, _ = operands((15, 33, 97))
    given = weight.T.copy() if transposed else weight

    def linear_of(place: Placement) -> k.Linear:
        floats = place.floats(given), place.floats(bias)
        return k.Linear(*floats, place.stream, transposed=transposed, format="bfloat16")

    with at(Where("cpu", "float32", packed_on)) as place:
        linear = linear_of(place)
    for target in k.cpu_targets():
        with at(Where("cpu", "float32", target)) as place:
            o = Operands(place, "dense")
            np.testing.assert_array_equal(product(o, x, linear), product(o, x, linear_of(place)))


@pytest.mark.parametrize("place", CPU_TARGETS_OF_PRODUCTS, indirect=True)
@pytest.mark.parametrize("shape", [(113, 769, 100), (57, 384, 1152)])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_number_of_threads(
    shape: tuple, place: Placement
):
    o, (x, weight, bias, _) = Operands(place, "dense"), operands(shape)
    linear = packed(place, weight, bias)
    whole = product(o, x, linear)
    try:
        for threads in (1, 3):
            k.set_num_threads(threads)
            for rows in (slice(0, 1), slice(5, 12), slice(20, 50), slice(None)):
                np.testing.assert_array_equal(product(o, x[rows], linear), whole[rows])
    finally:
        k.set_num_threads(0)


@pytest.mark.parametrize("place", CPU_TARGETS_OF_PRODUCTS, indirect=True)
def test_what_is_not_finite_stays_so_in_its_row_or_column(place: Placement):
    o, (x, weight, _, _) = Operands(place, "dense"), operands((16, 33, 40))
    x[3, 32], x[7, 1], weight[9, 5], weight[11, 32] = np.nan, np.inf, np.nan, -np.inf
    # The upper half of this NaN has the bits of an infinity.
    weight[20, 0] = np.array([0x7F800001], np.uint32).view(np.float32)[0]
    got = product(o, x, packed(place, weight))
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64) @ weight.T.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@pytest.mark.parametrize("place", CPU_TARGETS_OF_PRODUCTS, indirect=True)
def test_weights_take_half_the_memory(place: Placement):
    weight = np.zeros((96, 64), np.float32)
    whole = k.Linear(place.floats(weight), None, place.stream)
    assert packed(place, weight).nbytes == whole.nbytes // 2 == weight.nbytes // 2

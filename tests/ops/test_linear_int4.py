"""GEMMs with 4-bit weights: those of the values that codes, scales and zero points stand for, in
fp64."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.case import LAYOUTS, Operands, another_number_of_threads, normal
from tests.places import CPU_TARGETS, GPU_FP32, GPU_HALVES, TORCH_DTYPES, Where, at, rounded
from tests.tolerance import allowed_error

PLACES = pytest.mark.parametrize("place", [*CPU_TARGETS, *GPU_HALVES], indirect=True)
ON_GPUS = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
ON_CPUS = pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
# (tokens, in_features, out_features, group; 0: a row): one row to many, partial tiles, inputs that
# end within a unit of 64, and weights that are dequantised in parts (on Hopper for unaligned
# operands). With the last shapes Hopper's wgmma kernels use each of their tiles, whole and split
# along k.
SHAPES = [
    (1, 4096, 1000, 128),
    (1, 32, 5, 32),
    (2, 96, 40, 32),
    (3, 64, 16, 64),
    (5, 11008, 264, 128),
    (8, 768, 2304, 64),
    (9, 160, 33, 0),
    (16, 1024, 3072, 32),
    (17, 14336, 64, 128),
    (31, 256, 48, 256),
    (33, 4096, 520, 128),
    (64, 352, 1040, 32),
    (65, 1024, 256, 0),
    (128, 2048, 384, 128),
    (129, 768, 768, 64),
    (256, 4096, 1000, 128),
    (257, 768, 768, 64),
    (300, 1024, 97, 32),
    (260, 8192, 6000, 128),
    (40, 64, 17000, 32),
    (40, 256, 17000, 64),
    (96, 128, 17000, 64),
    (128, 1024, 4096, 64),
    (250, 1024, 4096, 128),
    (120, 160, 17000, 32),
    (160, 128, 17000, 0),
    (190, 192, 17000, 64),
    (220, 128, 17000, 128),
    (250, 96, 17000, 32),
    (700, 608, 4104, 32),
]

# For CPUs: sizes around a word, a register, a panel, a block and a task; chains that do not fill
# their steps, and groups of several chains.
CPU_SHAPES = [
    (1, 4096, 1000, 128),
    (1, 32, 5, 32),
    (2, 96, 40, 32),
    (3, 64, 16, 64),
    (3, 1536, 70, 512),
    (5, 1056, 33, 0),
    (8, 768, 2304, 64),
    (13, 160, 33, 0),
    (58, 320, 97, 64),
    (129, 768, 768, 64),
    (300, 352, 97, 32),
]


class Codes(NamedTuple):
    codes: np.ndarray  # uint8 [out_features, in_features]
    scales: np.ndarray
    zeros: np.ndarray  # 8 where none are given
    order: np.ndarray | None = None  # the input that each column of codes belongs to

    def weight(self) -> np.ndarray:
        """The weight in fp64: exact, as scales have 11 significant bits."""
        size = self.codes.shape[1] // self.scales.shape[1]
        scales, zeros = (np.repeat(each, size, 1) for each in (self.scales, self.zeros))
        numbers = scales.astype(np.float64) * (self.codes.astype(np.float64) - zeros)
        if self.order is None:
            return numbers
        weight = np.empty_like(numbers)
        weight[:, self.order] = numbers
        return weight

    def shuffled(self) -> Codes:
        inputs = self.codes.shape[1]
        return self._replace(order=np.random.default_rng(inputs).permutation(inputs))

    def nibbles(self) -> np.ndarray:
        return self.codes[:, ::2] | self.codes[:, 1::2] << 4

    def linear(
        self,
        place: Placement,
        bias: np.ndarray | None = None,
        zeros: bool = True,
        stored: str = "int4",
    ) -> k.Linear:
        there = [
            place.exact(self.nibbles(), np.uint8),
            place.exact(self.scales, np.float32),
            place.exact(self.zeros, np.uint8) if zeros else None,
            None if bias is None else place.floats(bias),
        ]
        order = None if self.order is None else k.Tensor.from_numpy(self.order.astype(np.int32))
        return k.Linear.of_int4(*there, place.stream, format=stored, order=order)


@cache
def codes_of(inner: int, out: int, group: int, symmetric: bool = False) -> Codes:
    rng, groups = np.random.default_rng(inner + out), inner // group if group else 1
    scales = np.exp(rng.normal(size=(out, groups))) * rng.choice([-1, 1], (out, groups)) / 8
    zeros = rng.integers(0, 16, (out, groups))
    return Codes(
        rng.integers(0, 16, (out, inner)).astype(np.uint8),
        (scales * inner**-0.5).astype(np.float16).astype(np.float32),
        (np.full_like(zeros, 8) if symmetric else zeros).astype(np.uint8),
    )


def operands(place: Placement, m: int, inner: int, out: int) -> list[np.ndarray]:
    rng = np.random.default_rng(m)
    found = [normal(rng, m, inner), normal(rng, out), normal(rng, m, out)]
    return [rounded(each, place.dtype) for each in found]


@ON_CPUS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", CPU_SHAPES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_product_of_a_cpu_is_that_of_the_numbers(
    shape: tuple, place: Placement, layout: str, symmetric: bool
):
    expect_the_product(shape, place, layout, symmetric)


@ON_GPUS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_of_a_gpu_is_that_of_the_numbers(shape: tuple, place: Placement, layout: str):
    expect_the_product(shape, place, layout)


def expect_the_product(
    shape: tuple, place: Placement, layout: str, symmetric: bool = False, ordered: bool = False
) -> None:
    """Checks the product. The reference in a 16-bit element type rounds the weight to it, as GEMMs
    of many rows do; in float32 it is an fp32 GEMM."""
    (m, inner, out, group), o = shape, Operands(place, layout)
    (x, bias, residual) = operands(place, m, inner, out)
    codes = codes_of(inner, out, group, symmetric)
    codes = codes.shuffled() if ordered else codes
    weight = torch.from_numpy(codes.weight())
    element = TORCH_DTYPES[place.dtype]
    sums = torch.float32 if element == torch.float32 else torch.float64
    once = weight.to(element).to(sums)
    given = [torch.from_numpy(each).double() for each in (x, bias, residual)]
    bare, linear = (codes.linear(place, of, zeros=not symmetric) for of in (None, bias))

    def expect(got: np.ndarray, act=None, add=False, biased=True) -> None:
        def result(weight: torch.Tensor) -> torch.Tensor:
            rows, b, r = (each.to(weight.dtype) for each in given)
            y = F.linear(rows, weight, b if biased else None)
            y = act(y) if act else y
            return y + r if add else y

        usual = result(once).to(element).double().numpy()
        assert not allowed_error(result(weight).numpy(), usual, place.dtype, inner).excess(got)

    def product(linear: k.Linear, activation: str = "none") -> np.ndarray:
        return o.result(k.linear, (m, out), o.rows(x), linear, activation)

    expect(product(bare), biased=False)
    expect(product(linear))
    expect(product(linear, "gelu_erf"), F.gelu)
    expect(product(linear, "silu"), F.silu)
    expect(o.result(k.linear_add, (m, out), o.rows(x), linear, o.rows(residual)), add=True)
    in_place = o.rows(residual)
    k.linear_add(in_place, o.rows(x), linear, in_place, place.stream)
    expect(o.read(in_place), add=True)


@PLACES
@pytest.mark.parametrize("count", [8, 64, 128, 320, 1024])
@pytest.mark.parametrize("inner", [64, 4096])
def test_each_number_is_rounded_once(place: Placement, inner: int, count: int):
    """Rows of the identity select single weights, in every kernel."""
    codes, o = codes_of(inner, 96, 32), Operands(place, "dense")
    linear, picks = codes.linear(place), min(count, inner)
    for first in range(0, inner, max(picks, inner // 4)):
        x = np.zeros((count, inner), np.float32)
        x[np.arange(picks), first + np.arange(picks)] = 1
        got = o.result(k.linear, (count, 96), o.rows(x), linear, "none")
        picked = codes.weight()[:, first : first + picks].T.astype(np.float32)
        np.testing.assert_array_equal(got[:picks], rounded(picked, place.dtype))


@PLACES
def test_zeros_that_are_not_given_are_8_and_host_and_device_weights_alike(place: Placement):
    codes, o = codes_of(256, 100, 32, symmetric=True), Operands(place, "dense")
    x, bias, _ = operands(place, 7, 256, 100)
    given, without = codes.linear(place, bias), codes.linear(place, bias, zeros=False)
    assert (given.format, given.in_features, given.out_features) == ("int4", 256, 100)
    on_cpu = place.device == "cpu"
    bytes_of = 128 * (128 + 8 * 8) + 400 if on_cpu else 112 * (128 + 8 * 4) + 200
    assert given.nbytes == bytes_of
    host = place.int4_linear(codes.nibbles(), codes.scales, codes.zeros, bias, "weight")
    results = [
        o.result(k.linear, (7, 100), o.rows(x), linear, "none") for linear in (given, without, host)
    ]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@PLACES
@pytest.mark.parametrize("count", [4, 100, 300, 1100])
def test_what_is_no_number_stays_in_its_row(place: Placement, count: int):
    codes, o = codes_of(768, 256, 128), Operands(place, "dense")
    x, bias, _ = operands(place, count, 768, 256)
    linear = codes.linear(place, bias)
    right = o.result(k.linear, (count, 256), o.rows(x), linear, "none")
    x[1, 5], x[2] = np.nan, 0
    got = o.result(k.linear, (count, 256), o.rows(x), linear, "none")
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[2], bias)
    np.testing.assert_array_equal(np.delete(got, [1, 2], 0), np.delete(right, [1, 2], 0))


@ON_GPUS
def test_rows_of_a_bucket_have_the_same_bits(place: Placement):
    codes, o = codes_of(4096, 512, 128), Operands(place, "dense")
    linear = codes.linear(place)
    for most, fewer in (
        (8, (3, 7)),
        (40, (33, 36)),
        (128, (121,)),
        (320, (289, 300)),
        (1088, (1030,)),
    ):
        x = operands(place, most, 4096, 512)[0]
        whole = o.result(k.linear, (most, 512), o.rows(x), linear, "none")
        for count in fewer:
            got = o.result(k.linear, (count, 512), o.rows(x[:count]), linear, "none")
            np.testing.assert_array_equal(got, whole[:count])


@ON_CPUS
@pytest.mark.parametrize("group", [0, 32, 128, 512])
def test_a_row_has_the_same_bits_in_any_batch_on_any_number_of_threads(
    place: Placement, group: int
):
    codes, o = codes_of(1024, 130, group), Operands(place, "dense")
    linear, x = codes.linear(place), operands(place, 130, 1024, 130)[0]

    def product(count: int) -> np.ndarray:
        return o.result(k.linear, (count, 130), o.rows(x[:count]), linear, "none")

    whole = product(130)
    for count in (1, 2, 3, 4, 5, 12, 13, 57):
        np.testing.assert_array_equal(product(count), whole[:count])
    with another_number_of_threads():
        np.testing.assert_array_equal(product(130), whole)


@PLACES
def test_what_kernels_do_not_take_is_refused(place: Placement):
    def of(codes: tuple[int, int], groups: int) -> k.Linear:
        nibbles = place.exact(np.zeros(codes), np.uint8)
        return k.Linear.of_int4(
            nibbles, place.exact(np.ones((codes[0], groups)), np.float32), stream=place.stream
        )

    with pytest.raises(k.Error, match="in_features: got 48, wanted a multiple of 32"):
        of((16, 24), 1)
    with pytest.raises(k.Error, match="groups: got 6 of 96 inputs, wanted 1, or groups of a power"):
        of((16, 48), 6)
    with pytest.raises(k.Error, match="groups: got 3 of 128 inputs"):
        of((16, 64), 3)
    with pytest.raises(k.Error, match="format: got int4, whose numbers come with their scales"):
        k.Linear(place.floats(np.ones((16, 32), np.float32)), None, place.stream, format="int4")
    linear = of((16, 32), 2)
    with pytest.raises(k.Error, match="format: got int4, whose numbers come with their scales"):
        linear.refresh(place.floats(np.ones((16, 64), np.float32)), None, place.stream)


@pytest.mark.parametrize("target", k.cpu_targets())
def test_every_instruction_set_has_it(target: str):
    with at(Where("cpu", "float32", target)) as place:
        assert place.matrices.has_int4


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
def test_gpus_in_float32_do_not(place: Placement):
    assert not place.matrices.has_int4
    assert "int4" not in k.weight_formats(place.dtype, place.stream)

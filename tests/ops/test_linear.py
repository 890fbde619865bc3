"""Packed weights: transposed storage, and packing again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.case import Operands, normal
from tests.places import CPU, CPU_TARGETS, GPU, TORCH_DTYPES, as_torch, rounded, settle
from tests.tolerance import Allowed, allowed_error

# (out_features, in_features): within and beyond a panel, not multiples of a register.
SHAPES = [(1, 1), (33, 17), (64, 48), (97, 100), (770, 31)]


def product(o: Operands, x: np.ndarray, linear: k.Linear) -> np.ndarray:
    return o.result(k.linear, (len(x), linear.out_features), o.rows(x), linear, "none")


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_a_transposed_weight_gives_the_same_bits(out: int, inner: int, place: Placement):
    rng, o = np.random.default_rng(0), Operands(place, "dense")
    weight, bias, x = normal(rng, out, inner), place.floats(normal(rng, out)), normal(rng, 5, inner)
    straight = k.Linear(place.floats(weight), bias, place.stream)
    turned = k.Linear(place.floats(weight.T.copy()), bias, place.stream, transposed=True)
    assert (turned.out_features, turned.in_features) == (out, inner)
    np.testing.assert_array_equal(product(o, x, turned), product(o, x, straight))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_a_weight_packed_anew_is_as_if_it_had_always_been_there(
    out: int, inner: int, place: Placement, transposed: bool
):
    rng, o = np.random.default_rng(1), Operands(place, "dense")
    shape, x = (inner, out) if transposed else (out, inner), normal(rng, 5, inner)
    weights = [place.floats(normal(rng, *shape)) for _ in range(2)]
    biases = [place.floats(normal(rng, out)) for _ in range(2)]
    old, new = (
        k.Linear(*numbers, place.stream, transposed=transposed)
        for numbers in zip(weights, biases, strict=True)
    )
    old.refresh(weights[1], biases[1], place.stream)
    np.testing.assert_array_equal(product(o, x, old), product(o, x, new))


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_packing_anew_wants_what_was_packed(place: Placement):
    def zeros(*shape: int) -> k.Tensor:
        return place.floats(np.zeros(shape, np.float32))

    linear = k.Linear(zeros(3, 4), zeros(3), place.stream)
    for numbers, message in (
        ((zeros(4, 3), zeros(3)), r"Linear.refresh: weight: got float32\[4, 3\].*out_features=3"),
        ((zeros(3, 4), None), "Linear.refresh: bias: wanted one where the Linear was made with"),
        ((zeros(3, 4), zeros(4)), r"Linear.refresh: bias: got float32\[4\]"),
    ):
        with pytest.raises(k.Error, match=message):
            linear.refresh(*numbers, place.stream)


# For a GPU, which reads weights unpacked: widths that are multiples of a vector and others.
GPU_SHAPES = [*SHAPES, (768, 3072), (2304, 768), (513, 1000), (1000, 513)]


def sums_of_products(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, place: Placement
) -> Allowed:
    """Returns x weight + bias as the place may compute it, for values that its type represents."""

    def reference(dtype: torch.dtype) -> np.ndarray:
        a, b, c = (torch.from_numpy(n).to(place.device, dtype) for n in (x, weight, bias))
        return (a @ b + c).double().cpu().numpy()

    dtype = TORCH_DTYPES[place.dtype]
    return allowed_error(reference(torch.float64), reference(dtype), place.dtype, len(weight))


@pytest.mark.parametrize("rows", [1, 5, 300])
# Bytes after the beginning of a cache line; a weight aligned to less than 32 bytes is copied.
@pytest.mark.parametrize("first", [0, 32])
@pytest.mark.parametrize("place", GPU, indirect=True)
def test_a_gpu_reads_a_transposed_weight_as_it_lies(first: int, rows: int, place: Placement):
    for out, inner in GPU_SHAPES:
        rng, o = np.random.default_rng(2), Operands(place, "dense")
        draw = [rounded(normal(rng, *s), place.dtype) for s in [(inner, out), (out,)] * 2]
        x = rounded(normal(rng, rows, inner), place.dtype)
        flat = place.floats(np.zeros(inner * out + 64, np.float32))
        memory = flat.section(first, [inner, out], place.dtype)
        bias = place.floats(draw[1])
        as_torch(memory, place).copy_(torch.from_numpy(draw[0]))
        settle(place)
        linear = k.Linear(memory, bias, place.stream, transposed=True)
        for weight, new in (draw[:2], draw[2:]):
            as_torch(memory, place).copy_(torch.from_numpy(weight))
            as_torch(bias, place).copy_(torch.from_numpy(new))
            settle(place)
            linear.refresh(memory, bias, place.stream)
            excess = sums_of_products(x, weight, new, place).excess(product(o, x, linear))
            assert not excess, f"{rows, out, inner}: {excess}"


@pytest.mark.parametrize("place", GPU, indirect=True)
def test_a_weight_of_the_host_may_be_transposed_for_a_gpu(place: Placement):
    rng, o = np.random.default_rng(3), Operands(place, "dense")
    weight, bias = (rounded(normal(rng, *s), place.dtype) for s in ((48, 33), (33,)))
    x = rounded(normal(rng, 7, 48), place.dtype)
    host = [k.Tensor.from_numpy(a) for a in (weight, bias)]
    if place.dtype != "float32":
        host = [
            k.Tensor.from_dlpack(torch.from_numpy(a).to(TORCH_DTYPES[place.dtype]))
            for a in (weight, bias)
        ]
    linear = k.Linear(*host, place.stream, transposed=True)
    excess = sums_of_products(x, weight, bias, place).excess(product(o, x, linear))
    assert not excess, excess


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_a_format_that_the_device_has_no_kernels_for_is_refused(place: Placement):
    weight = place.floats(np.zeros((4, 3), np.float32))
    with pytest.raises(k.Error, match="format: got float16 of a float32 weight, for which cpu has"):
        k.Linear(weight, None, place.stream, format="float16")
    known = "float32, float16, bfloat16, int8, float8_e4m3, float8_e4m3_blocks, int4, w4a8"
    with pytest.raises(k.Error, match=f"format: got 'int7', wanted one of {known}"):
        k.Linear(weight, None, place.stream, format="int7")
    with pytest.raises(k.Error, match="scales: got some for a float32 weight, wanted none"):
        k.Linear(weight, None, place.stream, scales=place.floats(np.ones(4, np.float32)))

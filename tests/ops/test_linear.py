"""A weight as it is packed: stored the other way round, and packed anew."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.case import Operands, normal
from tests.places import CPU, CPU_TARGETS, GPU

# (out_features, in_features): within a panel and beyond it, neither a multiple of a register
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


@pytest.mark.parametrize("place", GPU, indirect=True)
def test_a_gpu_takes_no_transposed_weight(place: Placement):
    with pytest.raises(k.Error, match=r"Linear: transposed: got a weight .* on cuda:0, wanted it"):
        k.Linear(place.floats(np.zeros((4, 3), np.float32)), None, place.stream, transposed=True)


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_a_format_that_the_device_has_no_kernels_for_is_refused(place: Placement):
    weight = place.floats(np.zeros((4, 3), np.float32))
    with pytest.raises(k.Error, match="format: got float16 of a float32 weight, for which cpu has"):
        k.Linear(weight, None, place.stream, format="float16")
    with pytest.raises(k.Error, match="format: got 'int7', wanted float32, float16, bfloat16 or"):
        k.Linear(weight, None, place.stream, format="int7")
    with pytest.raises(k.Error, match="scales: got some for a float32 weight, wanted none"):
        k.Linear(weight, None, place.stream, scales=place.floats(np.ones(4, np.float32)))

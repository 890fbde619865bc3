"""A model's weights are copied to its device in its dtype and back; unsupported ones are
rejected."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import devices, kernels
from fusewire.errors import ConfigurationError
from fusewire.float_types import converted, widened
from fusewire.placement import Placement
from fusewire.precision import Precision
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.places import CPU, GPU, TORCH_DTYPES, on_gpu

SHAPES = arrays.array_shapes(min_dims=1, max_dims=2, max_side=9)
# Every bit pattern of fp32, including NaN, infinities and subnormals.
BITS = arrays.arrays(np.uint32, SHAPES, elements=st.integers(0, 2**32 - 1))

TIES = np.uint32([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x00008000, 1])


def expected(array: np.ndarray, dtype: str) -> np.ndarray:
    return torch.from_numpy(array).to(TORCH_DTYPES[dtype]).float().numpy()


@given(BITS)
def test_bfloat16_is_rounded_as_torch_rounds(bits: np.ndarray) -> None:
    array = bits.view(np.float32)
    got = widened(converted(array, "bfloat16"), "bfloat16")
    np.testing.assert_array_equal(got, expected(array, "bfloat16"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves_are_rounded_to_the_nearest_and_ties_to_the_even_one(dtype: str) -> None:
    array = np.concatenate([TIES, TIES | 0x80000000]).view(np.float32)
    if dtype == "float16":
        array = np.float32([1 + 2**-11, 1 + 3 * 2**-11, 65504, 65519, 2**-25, 3 * 2**-25, np.nan])
    got = widened(converted(array, dtype), dtype)
    np.testing.assert_array_equal(got, expected(array, dtype))


@given(arrays.arrays(np.float32, SHAPES, elements=st.floats(-65504, 65504, width=32)))
def test_float16_is_rounded_as_torch_rounds(array: np.ndarray) -> None:
    got = widened(converted(array, "float16"), "float16")
    np.testing.assert_array_equal(got, expected(array, "float16"))


@pytest.mark.parametrize("beside", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("value", [65520.0, -1e5, 3e38])
def test_a_number_beyond_float16_is_refused_with_the_tensors_name(value, beside) -> None:
    message = r"got float16 for layer.1.weight, whose largest value is .*use bfloat16 or float32"
    with pytest.raises(ConfigurationError, match=message):
        converted(np.float32([1, value, beside]), "float16", "layer.1.weight")
    assert converted(np.float32([value]), "bfloat16").dtype == np.uint16
    assert converted(np.float32([value]), "float32") == np.float32(value)


def test_infinities_and_nan_are_no_overflow() -> None:
    array = np.float32([np.inf, -np.inf, np.nan, 65504])
    np.testing.assert_array_equal(widened(converted(array, "float16"), "float16"), array)


@pytest.mark.parametrize("place", [CPU, *GPU], indirect=True)
def test_what_goes_in_comes_back(place: Placement) -> None:
    array = np.random.default_rng(0).standard_normal((7, 33), dtype=np.float32)
    tensor = place.floats(array)
    assert tensor.dtype == place.dtype
    assert tensor.device == place.device
    np.testing.assert_array_equal(place.numpy(tensor), expected(array, place.dtype))
    for dtype in (np.int64, np.int32, np.uint8, np.float32):
        exact = place.exact(np.arange(9), dtype)
        np.testing.assert_array_equal(place.numpy(exact), np.arange(9, dtype=dtype))
    assert place.empty(2, 3).dtype == place.dtype
    assert place.empty(2, 3, dtype="uint8").nbytes == 6
    assert place.stream.can_capture == on_gpu(place)


@pytest.mark.parametrize("place", [CPU, *GPU], indirect=True)
def test_arrays_lie_end_to_end_in_fp32(place: Placement) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 3
    given = [whole, whole[:, ::2, 1:], np.float64([[1e-3], [2]]), whole[:0]]
    packed = place.end_to_end(given)
    assert packed.dtype == "float32"
    wanted = np.concatenate([each.reshape(-1) for each in given]).astype(np.float32)
    np.testing.assert_array_equal(place.numpy(packed), wanted)


def test_auto_is_float32_on_the_cpu() -> None:
    assert Placement().dtype == "float32"
    assert Placement(torch.device("cpu"), "auto").device == "cpu"


def test_an_automatic_device_is_one_that_is_here() -> None:
    assert Placement("auto").device == ("cuda:0" if devices.found() else "cpu")


@pytest.mark.gpu
def test_auto_is_float16_on_a_gpu() -> None:
    assert Placement("cuda").dtype == "float16"
    assert Placement(torch.device("cuda")).device == "cuda:0"


@pytest.mark.parametrize("dtype", ["half", "fp16", "", "int8"])
def test_an_unknown_dtype_is_refused(dtype: str) -> None:
    with pytest.raises(ConfigurationError, match=f"got {dtype!r}, wanted one of auto, float32"):
        Placement("cpu", dtype)


def test_the_cpu_refuses_float16() -> None:
    message = "got 'float16' on cpu, wanted float32 or bfloat16; leave it out, or choose a GPU"
    with pytest.raises(ConfigurationError, match=message):
        Placement("cpu", "float16")


def test_bfloat16_on_the_cpu_is_the_format_of_weights() -> None:
    place = Placement("cpu", "bfloat16")
    assert place.dtype == "float32"
    assert place.precision == Precision("float32", *["bfloat16"] * 3)
    assert Placement("cpu", "bfloat16", "int8").precision.layers == "int8"


@pytest.mark.parametrize("device", ["gpu", "cuda:10", "CPU", 0, torch.device("meta")])
def test_an_unknown_device_is_refused(device: object) -> None:
    with pytest.raises(ConfigurationError, match=r"device: got .*, wanted one of auto, cpu, cuda"):
        Placement(device)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"device: got cuda"):
        Placement("cuda:9")


def test_a_placement_is_tuning_for_the_length_of_the_context() -> None:
    place = Placement("cpu")
    with place.tuning():
        assert place.stream.tuning
        with place.tuning():
            pass
        assert place.stream.tuning
    assert not place.stream.tuning


def test_on_the_cpu_one_kernel_computes_every_number_of_rows() -> None:
    assert Placement("cpu").rows_to_tune(16384) == []


@pytest.mark.parametrize("place", [CPU, *GPU], indirect=True)
def test_a_readback_has_the_values_of_when_it_was_begun(place) -> None:
    before = np.arange(1000, dtype=np.float32).reshape(10, 100) / 8
    tensor = place.exact(before.copy(), np.float32)
    reading = place.readback(tensor)
    kernels.write(tensor, place.exact(np.zeros_like(before), np.float32), place.stream)
    np.testing.assert_array_equal(reading.wait().numpy(), before)
    assert not place.readback(tensor).wait().numpy().any()


def test_a_readback_of_rows_that_lie_apart_is_refused() -> None:
    with pytest.raises(kernels.Error, match=r"readback: got .* with rows apart"):
        Placement().readback(Placement().matrix(3, 5).columns(0, 3))

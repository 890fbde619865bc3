"""The dtype that a device computes in and the format of its weights; unsupported ones are rejected
by name."""

from __future__ import annotations

import pytest
from fusewire.errors import ConfigurationError
from fusewire.precision import Precision, check_kv_cache_dtype


@pytest.mark.parametrize(
    ("device", "dtype", "quantize", "precision", "described"),
    [
        ("cpu", "auto", "none", ("float32", "float32", "float32", "float32"), "float32"),
        ("cpu", "auto", "int8", ("float32", "float32", "int8", "int8"), "float32 (int8 weights)"),
        (
            "cpu",
            "bfloat16",
            "none",
            ("float32", "bfloat16", "bfloat16", "bfloat16"),
            "float32 (bfloat16 weights)",
        ),
        (
            "cpu",
            "bfloat16",
            "int8",
            ("float32", "bfloat16", "int8", "int8"),
            "float32 (bfloat16 and int8 weights)",
        ),
        ("cuda:0", "auto", "none", ("float16", "float16", "float16", "float16"), "float16"),
        (
            "cuda:1",
            "bfloat16",
            "none",
            ("bfloat16", "bfloat16", "bfloat16", "bfloat16"),
            "bfloat16",
        ),
        (
            "cuda",
            "auto",
            "fp8",
            ("float16", "float16", "float8_e4m3", "float16"),
            "float16 (float8_e4m3 weights)",
        ),
        (
            "cuda",
            "bfloat16",
            "int8",
            ("bfloat16", "bfloat16", "int8", "bfloat16"),
            "bfloat16 (int8 weights)",
        ),
    ],
)
def test_what_is_computed_in_and_what_is_stored(device, dtype, quantize, precision, described):
    found = Precision.of(device, dtype, quantize)
    assert found == Precision(*precision)
    assert found.described == described


def test_the_format_of_keys_and_values_is_told_beside_that_of_weights():
    precision = Precision.of("cuda", "auto", "fp8")
    assert precision.with_weights(["float16"], "fp8") == "float16 (fp8 KV cache)"
    told = precision.with_weights([precision.weights, precision.layers], "fp8")
    assert told == "float16 (float8_e4m3 weights, fp8 KV cache)"


@pytest.mark.parametrize(
    ("device", "dtype", "quantize", "message"),
    [
        ("cpu", "float16", "none", "dtype: got 'float16' on cpu, wanted float32 or bfloat16"),
        ("cpu", "int8", "none", "dtype: got 'int8', wanted one of auto, float32"),
        ("cpu", "auto", "int4", "quantize: got 'int4', wanted one of none, int8, fp8"),
        ("cuda:0", "float32", "int8", "quantize: got 'int8' on cuda:0 with dtype float32, wanted"),
        ("cpu", "auto", "fp8", "quantize: got 'fp8' on cpu, wanted none or int8, as only GPUs"),
        ("cuda:0", "float32", "fp8", "quantize: got 'fp8' on cuda:0 with dtype float32, wanted"),
    ],
)
def test_what_a_device_cannot_is_refused(device, dtype, quantize, message):
    with pytest.raises(ConfigurationError, match=message):
        Precision.of(device, dtype, quantize)


@pytest.mark.parametrize(
    ("device", "dtype", "kv_cache_dtype", "message"),
    [
        ("cpu", "float32", "int8", "kv_cache_dtype: got 'int8', wanted one of auto, fp8"),
        ("cpu", "float32", "fp8", "kv_cache_dtype: got 'fp8' on cpu, wanted auto, as only GPUs"),
        ("cuda:0", "float32", "fp8", "kv_cache_dtype: got 'fp8' on cuda:0 with dtype float32"),
    ],
)
def test_what_a_device_cannot_of_a_cache_is_refused(device, dtype, kv_cache_dtype, message):
    with pytest.raises(ConfigurationError, match=message):
        check_kv_cache_dtype(device, dtype, kv_cache_dtype)

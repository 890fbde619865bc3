"""A matrix is stored as `quantize` or its folder says, or exactly where `quantize_skip` has it."""

from __future__ import annotations

import pytest
from fusewire import kernels
from fusewire.errors import ConfigurationError
from fusewire.matrix_formats import MatrixFormats
from fusewire.precision import Precision

SHAPE = (8, 4)
STREAM = kernels.Stream("cpu")


def formats(dtype: str = "float32", quantize: str = "none", skip: str = "") -> MatrixFormats:
    return MatrixFormats(Precision.of("cpu", dtype, quantize), STREAM, skip)


def test_a_layer_has_the_format_that_is_asked_for_unless_it_is_skipped() -> None:
    chosen = formats("bfloat16", "int8", skip="second")
    assert [chosen.layer(name, SHAPE) for name in ("first", "second")] == ["int8", "bfloat16"]
    assert chosen.chosen == {"first": "int8", "second": "bfloat16"}


def test_the_vocabulary_is_quantised_where_the_device_reads_it_so() -> None:
    assert formats(quantize="int8").quantizes("head", SHAPE)
    assert not formats(quantize="int8", skip="head").quantizes("head", SHAPE)
    exact = formats()
    assert not exact.quantizes("head", SHAPE)
    assert not exact.chosen


def test_a_vocabulary_that_is_skipped_for_another_device_is_known_here_too() -> None:
    chosen = formats(skip="head")
    chosen.quantizes("head", SHAPE)
    chosen.check_skipped()


def test_codes_are_kept_where_there_are_kernels_for_them() -> None:
    chosen = formats(skip="second")
    assert chosen.multiplies("first", SHAPE, "int8")
    assert not chosen.multiplies("second", SHAPE, "int8")
    assert not chosen.multiplies("third", SHAPE, "float8_e4m3")
    assert chosen.chosen == {"first": "int8", "second": "float32"}


@pytest.mark.parametrize(
    ("quantize", "skip", "stored"),
    [
        ("none", "", "int4"),
        ("none", "matrix", "float32"),
        ("int8", "", "w4a8"),
        ("int8", "matrix", "int4"),
    ],
)
def test_4_bits_are_multiplied_in_int8_where_that_is_asked_for(quantize, skip, stored) -> None:
    assert formats(quantize=quantize, skip=skip).int4("matrix", SHAPE) == stored


def test_another_precision_has_the_same_record() -> None:
    """A model whose hidden states overflow float16 is loaded in another than was asked for."""
    asked = MatrixFormats(Precision.of("cuda:0", "float16"), STREAM, "matrix")
    other = asked.in_precision(Precision.of("cuda:0", "bfloat16"))
    assert other.layer("matrix", SHAPE) == "bfloat16"
    asked.check_skipped()
    assert other.described("auto") == "bfloat16"


def test_a_name_that_no_matrix_has_is_refused() -> None:
    chosen = formats(skip="frist")
    chosen.layer("first", SHAPE)
    with pytest.raises(ConfigurationError, match=r"quantize_skip: got 'frist', wanted .* first"):
        chosen.check_skipped()


def test_what_was_dequantised_of_a_folder_is_counted() -> None:
    chosen = formats()
    chosen.as_stored |= {"first": True, "second": False, "third": False}
    assert chosen.described("auto") == "float32 (2 of 3 quantised matrices dequantised)"

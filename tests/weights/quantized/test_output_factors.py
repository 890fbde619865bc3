"""Matrices whose outputs have factors (DINOv2's layer scales; quick GELU, computed as SiLU) keep a
folder's integers: the factors become those of the scales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fusewire import kernels
from fusewire.models.assemble import Weights
from fusewire.models.stored_weights import Dense
from fusewire.placement import Placement
from fusewire.weights import Checkpoint
from safetensors.torch import load_file, save_file

from tests.ops import int8
from tests.tolerance import MODEL_FP32
from tests.weights.quantized.writers import (
    Format,
    block_fp8,
    pack_quantized,
    static_w8a8,
    w8a8,
    write_layer,
)

OUTPUTS, INPUTS = 48, 64
FACTOR = 1.702
ROWS = np.random.default_rng(1).normal(size=(7, INPUTS)).astype("f")


def written(folder: Path, form: Format) -> tuple[np.ndarray, np.ndarray]:
    """Writes a layer beside factors of its outputs, some of them negative and one 0. Returns its
    dequantised weight and the factors."""
    rng = np.random.default_rng(0)
    layer = write_layer(folder, form, rng.normal(size=(OUTPUTS, INPUTS)).astype("f"))
    factors = rng.normal(size=OUTPUTS).astype("f")
    factors[3] = 0
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"factors": torch.from_numpy(factors)}, path)
    return layer.weight, factors


def product(
    folder: Path, place: Placement, *, row_scale: str = "", factor: float = 1
) -> np.ndarray:
    dense = Dense(("layer",), INPUTS, OUTPUTS, bias=False, row_scale=row_scale, weight_scale=factor)
    linear = Weights(Checkpoint.open(folder), place).layer_linear(dense)
    out = place.empty(len(ROWS), OUTPUTS)
    kernels.linear(out, place.floats(ROWS), linear, "none", place.stream)
    return out.numpy()


@pytest.mark.parametrize("factor", [1, FACTOR])
def test_a_product_is_that_of_the_files_integers(tmp_path, factor):
    """Bit by bit. One integer is -128, which has no opposite."""
    _, factors = written(tmp_path, w8a8())
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["layer.weight"][int(np.argmin(factors)), 5] = -128
    save_file(tensors, path)
    place = Placement("cpu")
    got = product(tmp_path, place, row_scale="factors", factor=factor)
    assert place.formats == {"layer": "int8"}
    numbers = tensors["layer.weight"].numpy().astype(np.int64)
    scales = tensors["layer.weight_scale"].float().numpy()[:, 0] * factors * np.float32(factor)
    expected = int8.product(int8.rounded_rows(ROWS), int8.Rounded(numbers, scales))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_4_bits_stay_so(tmp_path, quantize):
    weight, factors = written(tmp_path, pack_quantized(group_size=32, symmetric=False))
    place = Placement("cpu", quantize=quantize)
    got = product(tmp_path, place, row_scale="factors", factor=FACTOR)
    assert place.formats == {"layer": "int4" if quantize == "none" else "w4a8"}
    rows = int8.rounded_rows(ROWS)
    x = ROWS if quantize == "none" else rows.numbers * rows.scales[:, None]
    expected = x.astype(np.float64) @ (weight * factors[:, None] * FACTOR).T
    np.testing.assert_allclose(got, expected, rtol=0, atol=MODEL_FP32)


def float8(folder: Path, dense: Dense, form: Format) -> object:
    written(folder, form)
    return Weights(Checkpoint.open(folder), Placement("cpu"))._codes(dense)


def test_scales_of_blocks_and_of_inputs_take_none(tmp_path):
    """A block has rows of several factors, and a static scale does not know the factor of its
    input."""
    by_output = Dense(("layer",), INPUTS, OUTPUTS, bias=False, row_scale="factors")
    by_all = Dense(("layer",), INPUTS, OUTPUTS, bias=False, weight_scale=FACTOR)
    for dense in (by_output, by_all):
        assert float8(tmp_path, dense, block_fp8((128, 128))) is None
    assert float8(tmp_path, by_all, static_w8a8("channel")) is None
    found = float8(tmp_path, by_output, static_w8a8("channel"))
    stored = load_file(tmp_path / "model.safetensors")
    factors = stored["factors"]
    values = torch.from_numpy(found.codes).view(torch.float8_e4m3fn).float().T * found.scales
    expected = stored["layer.weight"].float() * stored["layer.weight_scale"] * factors[:, None]
    np.testing.assert_allclose(values.T, expected, rtol=1e-6)
    assert (found.scales >= 0).all()

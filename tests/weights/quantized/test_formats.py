"""Every format's numbers are those that it was written with, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.errors import CheckpointError
from fusewire.weights import Checkpoint
from fusewire.weights.quantized import weight as weight_module
from fusewire.weights.quantized.weight import Codes, float8_e4m3
from hypothesis import given
from hypothesis import strategies as st

from tests.weights.quantized.writers import (
    FORMATS,
    Format,
    Layer,
    awq,
    block_fp8,
    gptq,
    pack_quantized,
    packed,
    write_layer,
)


def random_weight(rows: int = 80, columns: int = 48, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
def test_a_layer_has_the_numbers_it_was_written_with(tmp_path, name):
    weight = random_weight()
    layer = write_layer(tmp_path, FORMATS[name], weight)
    assert np.abs(layer.weight - weight).max() < np.abs(weight).max() / 2
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.check({"layer.weight": weight.shape}, [])
    got = checkpoint.take("layer.weight")
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, layer.weight)
    np.testing.assert_array_equal(checkpoint.take("layer.weight", "float16"), layer.weight)


@pytest.mark.parametrize("name", FORMATS)
def test_pieces_make_the_same_weight(tmp_path, name, monkeypatch):
    layer = write_layer(tmp_path, FORMATS[name], random_weight())
    monkeypatch.setattr(weight_module, "_PIECE", 100)
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("layer.weight"), layer.weight)


@pytest.mark.parametrize("form", [gptq(group_size=32), pack_quantized(group_size=32)])
def test_the_last_group_may_be_shorter(tmp_path, form):
    layer = write_layer(tmp_path, form, random_weight(8, 56))
    assert layer.weight.shape == (8, 56)
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("layer.weight"), layer.weight)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_zero_points_of_gptq_are_those_of_all_codes(tmp_path, bits, version):
    """0 too, of rows without negative numbers, which version 1 borrows from the next one for."""
    weight, signs = np.abs(random_weight()), np.repeat([1, -1, 1, 1, -1], 16)
    form = gptq(bits, symmetric=False, version=version)
    layer = write_layer(tmp_path, form, weight * signs[:, None])
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("layer.weight"), layer.weight)


def test_rows_and_columns_that_fill_no_word(tmp_path):
    layer = write_layer(
        tmp_path, pack_quantized(symmetric=False, group_size=-1), random_weight(3, 5)
    )
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("layer.weight"), layer.weight)


def test_one_group_of_all_inputs(tmp_path):
    form = awq(48)
    form.config["group_size"] = -1
    layer = write_layer(tmp_path, form, random_weight())
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("layer.weight"), layer.weight)


def test_autoround_packs_as_gptq_where_it_does_not_say(tmp_path):
    form = gptq(method="auto-round")
    del form.config["packing_format"]
    layer = write_layer(tmp_path, form, random_weight())
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("layer.weight"), layer.weight)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("packing", ["auto_round", "auto_round:gptqmodel"])
def test_autorounds_own_packing_has_zero_points_as_they_are(tmp_path, bits, packing):
    form = gptq(bits, symmetric=False, version="gptq_v2", method="auto-round")
    form.config["packing_format"] = packing
    layer = write_layer(tmp_path, form, random_weight())
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("layer.weight"), layer.weight)


@pytest.mark.parametrize("alias", [True, "dynamic"])
def test_an_order_by_activations_has_other_names(tmp_path, alias):
    form = pack_quantized(act_order=True)
    form.config["config_groups"]["group_0"]["weights"]["actorder"] = alias
    layer = write_layer(tmp_path, form, random_weight())
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("layer.weight"), layer.weight)


@pytest.mark.parametrize("block", [(32, 16), None])
def test_scales_may_be_exponents(tmp_path, block):
    """As transformers stores them with scale_fmt ue8m0."""
    plain = block_fp8(block)

    def write(weight: np.ndarray) -> Layer:
        tensors = plain.write(weight).tensors
        scales = tensors["weight_scale_inv"]
        exponents = torch.exp2(torch.ceil(torch.log2(scales))).to(torch.float8_e8m0fnu)
        factors = exponents.float().numpy()
        if block:
            factors = factors.repeat(32, 0)[: len(weight)].repeat(16, 1)[:, : weight.shape[1]]
        numbers = tensors["weight"].float().numpy() * factors
        return Layer(tensors | {"weight_scale_inv": exponents}, numbers)

    form = Format(write, plain.config | {"scale_fmt": "ue8m0"})
    layer = write_layer(tmp_path, form, random_weight())
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("layer.weight"), layer.weight)


@pytest.mark.parametrize(("code", "got"), [(255, "nan"), (254, r"1\.7\d*e\+38")])
def test_an_exponent_of_no_scale_is_named(tmp_path, code, got):
    layer = block_fp8().write(random_weight())
    scales = layer.tensors["weight_scale_inv"]
    bytes_ = torch.full(scales.shape, code, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    layer.tensors["weight_scale_inv"] = bytes_
    write_layer(tmp_path, Format(lambda _: layer, block_fp8().config), np.empty(0))
    with pytest.raises(CheckpointError, match=f"weight_scale_inv': got {got}, wanted finite"):
        Checkpoint.open(tmp_path).take("layer.weight")


def test_compression_config_is_read_as_quantization_config(tmp_path):
    form = pack_quantized()
    form.key = "compression_config"
    del form.config["quant_method"]
    layer = write_layer(tmp_path, form, random_weight())
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("layer.weight"), layer.weight)


@given(
    st.integers(1, 20), st.integers(1, 20), st.sampled_from([2, 4, 8]), st.integers(0, 1), st.data()
)
def test_codes_are_read_as_they_were_packed(rows, columns, bits, axis, data):
    codes = np.random.default_rng(rows * columns).integers(0, 1 << bits, (rows, columns))
    count = 32 // bits
    lanes = tuple(data.draw(st.permutations(range(count)))) if data.draw(st.booleans()) else ()
    words = packed(codes, bits, axis, lanes).numpy().view(np.uint32)
    read = Codes(words, (rows, columns), bits, axis, lanes)
    np.testing.assert_array_equal(read.all(), codes)
    begin = data.draw(st.integers(0, (rows - 1) // count)) * count
    end = data.draw(st.integers(begin + 1, rows))
    np.testing.assert_array_equal(read.rows(begin, end), codes[begin:end])


def test_fp8_numbers_are_those_of_torch():
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    np.testing.assert_array_equal(float8_e4m3(), codes.float().numpy())

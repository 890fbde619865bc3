"""What is wrong in a quantised folder is one CheckpointError that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from fusewire.errors import CheckpointError
from fusewire.models import build_decoder, load_decoder, read_config
from fusewire.models.config import Config
from fusewire.weights import Checkpoint
from fusewire.weights.quantized import method_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.models.tiny_decoders import tiny_decoder
from tests.reference import edit_config
from tests.weights.quantized.writers import (
    FORMATS,
    Format,
    Layer,
    gptq,
    int_quantized,
    quantise,
    write_layer,
)

SHAPE = (32, 32)
Tensors = dict[str, torch.Tensor]


@cache
def written(name: str) -> Layer:
    return FORMATS[name].write(np.random.default_rng(0).normal(size=SHAPE).astype("f"))


def layer(folder: Path, name: str) -> Tensors:
    write_layer(folder, Format(lambda _: written(name), FORMATS[name].config), np.empty(0))
    return load_file(folder / "model.safetensors")


def opened(folder: Path, tensors: Tensors) -> np.ndarray:
    save_file(tensors, folder / "model.safetensors")
    checkpoint = Checkpoint.open(folder)
    checkpoint.check({"layer.weight": SHAPE}, [])
    return checkpoint.take("layer.weight")


def with_first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


PARTS = [(name, part) for name in FORMATS for part in written(name).tensors]
SCALES = [(name, part) for name, part in PARTS if "scale" in part]


FLOAT8 = [
    name
    for name, part in PARTS
    if part == "weight" and written(name).tensors[part].dtype == torch.float8_e4m3fn
]
BY_TENSOR = [
    (name, part)
    for name, part in SCALES
    if FORMATS[name].config.get("quant_method") == "fp8"
    and part.startswith("weight_scale")
    and written(name).tensors[part].ndim < 2
]


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("name", FLOAT8)
def test_a_code_of_no_number_is_named(tmp_path, name, code):
    tensors = layer(tmp_path, name)
    tensors["layer.weight"].view(torch.uint8)[3, 5] = code
    with pytest.raises(CheckpointError, match=r"tensor 'layer\.weight': got NaN"):
        opened(tmp_path, tensors)


@pytest.mark.parametrize(("name", "part"), BY_TENSOR)
def test_a_scale_of_the_tensor_may_have_two_dimensions(tmp_path, name, part):
    tensors = layer(tmp_path, name)
    wanted = opened(tmp_path, tensors).copy()
    tensors[f"layer.{part}"] = tensors[f"layer.{part}"].reshape(1, 1)
    assert np.array_equal(opened(tmp_path, tensors), wanted)


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_missing_part_is_named(tmp_path, name, part):
    tensors = layer(tmp_path, name)
    del tensors[f"layer.{part}"]
    if part == "g_idx" and name != "gptq-act-order":  # known without it
        assert opened(tmp_path, tensors).shape == SHAPE
        return
    with pytest.raises(CheckpointError, match=rf"layer\.{part}"):
        opened(tmp_path, tensors)


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_part_of_another_type_is_named(tmp_path, name, part):
    tensors = layer(tmp_path, name)
    tensors[f"layer.{part}"] = tensors[f"layer.{part}"].to(torch.int16)
    with pytest.raises(CheckpointError, match=rf"layer\.{part}'?: got I16, wanted"):
        opened(tmp_path, tensors)


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_part_of_another_shape_is_an_error(tmp_path, name, part):
    tensors = layer(tmp_path, name)
    tensor = tensors[f"layer.{part}"]
    longer = (*tensor.shape[:-1], tensor.shape[-1] + 1) if tensor.dim() else (2,)
    tensors[f"layer.{part}"] = torch.ones(longer).to(tensor.dtype)
    with pytest.raises(CheckpointError, match=r"got .*, wanted"):
        opened(tmp_path, tensors)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5, 0.0])
@pytest.mark.parametrize(("name", "part"), SCALES)
def test_a_scale_that_cannot_be_is_named(tmp_path, name, part, value):
    tensors = layer(tmp_path, name)
    tensors[f"layer.{part}"] = with_first(value)(tensors[f"layer.{part}"])
    if value == -0.5 and "fp8" not in name and part != "input_scale":
        assert np.isfinite(opened(tmp_path, tensors)).all()  # AutoRound's may be negative
        return
    wanted = rf"tensor 'layer\.{part}': got {value}, wanted finite and .*; download"
    with pytest.raises(CheckpointError, match=wanted):
        opened(tmp_path, tensors)


@pytest.mark.parametrize(("name", "part"), [("fp8-inverse", "weight_scale_inv"), ("awq", "scales")])
def test_a_scale_that_makes_weights_infinite_is_named(tmp_path, name, part):
    tensors = layer(tmp_path, name)
    tensors[f"layer.{part}"] = with_first(2.0**120)(tensors[f"layer.{part}"].float())
    wanted = rf"'layer\.{part}': got 1\.3\d*e\+36, wanted finite and .*, less than 1e\+35"
    with pytest.raises(CheckpointError, match=wanted):
        opened(tmp_path, tensors)


@pytest.mark.parametrize("value", [-1, 2, 1 << 30])
@pytest.mark.parametrize(
    ("name", "part"), [("gptq-act-order", "g_idx"), ("pack-act-order", "weight_g_idx")]
)
def test_a_group_out_of_range_is_named(tmp_path, name, part, value):
    tensors = layer(tmp_path, name)
    tensors[f"layer.{part}"] = with_first(value)(tensors[f"layer.{part}"])
    with pytest.raises(CheckpointError, match=rf"{part}': got {value}, wanted groups in 0\.\.1;"):
        opened(tmp_path, tensors)


@pytest.mark.parametrize("part", ["weight", "weight_zero_point"])
@pytest.mark.parametrize("value", [-9, 8])
def test_integers_in_bytes_that_are_not_of_4_bits_are_named(tmp_path, part, value):
    layer = write_layer(tmp_path, int_quantized(bits=4, symmetric=False), np.eye(*SHAPE, dtype="f"))
    layer.tensors[part][3] = value
    tensors = {f"layer.{name}": tensor for name, tensor in layer.tensors.items()}
    with pytest.raises(CheckpointError, match=rf"{part}': got {value}, wanted integers of 4 bits"):
        opened(tmp_path, tensors)


def test_an_order_that_the_configuration_denies_is_refused(tmp_path):
    tensors = layer(tmp_path, "gptq-act-order")
    config = FORMATS["gptq-act-order"].config | {"desc_act": False}
    edit_config(tmp_path, quantization_config=config)
    with pytest.raises(CheckpointError, match="g_idx': got an order, wanted columns in order"):
        opened(tmp_path, tensors)


def test_zero_points_of_symmetric_weights_are_zeros(tmp_path):
    tensors = layer(tmp_path, "int8")
    tensors["layer.weight_zero_point"] = torch.zeros(32, 1, dtype=torch.int8)
    assert opened(tmp_path, tensors).shape == SHAPE
    tensors["layer.weight_zero_point"][3] = 1
    with pytest.raises(CheckpointError, match="weight_zero_point': got other than zeros, wanted"):
        opened(tmp_path, tensors)


def test_a_layer_that_is_quantised_and_ignored_is_refused(tmp_path):
    tensors = layer(tmp_path, "int8")
    for ignored in ("layer", "re:^lay"):
        config = FORMATS["int8"].config | {"ignore": [ignored]}
        edit_config(tmp_path, quantization_config=config)
        with pytest.raises(CheckpointError, match="got a quantised module, wanted none, as `ign"):
            opened(tmp_path, tensors)


@pytest.mark.parametrize(
    "pattern",
    ["a*a*a*a*a*a*b", "a?" * 70 + "a" * 70, "(a|aa)" * 60 + "b", "(a*)?" * 5 + "(a|b)?" * 9],
)
def test_a_pattern_that_takes_very_long_is_refused(tmp_path, pattern):
    name = "a" * 70
    write_layer(tmp_path, FORMATS["int8"], np.ones(SHAPE, "f"), name)
    config = FORMATS["int8"].config | {"ignore": [f"re:{pattern}"]}
    edit_config(tmp_path, quantization_config=config)
    with pytest.raises(CheckpointError, match=r"got 're:.*fewer choices, for a name of 70 char"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    "pattern",
    [
        r".*layers\.(" + "|".join(map(str, range(90))) + r")\..*proj.*",
        r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj$",
        r".*\.\d+\..*\.\d+\..*",
    ],
)
def test_a_pattern_of_published_folders_is_matched(tmp_path, pattern):
    name = "model.layers.11.mlp.experts.123.gate_proj"
    write_layer(tmp_path, FORMATS["int8"], np.ones(SHAPE, "f"), name)
    config = FORMATS["int8"].config | {"ignore": [f"re:{pattern}"]}
    edit_config(tmp_path, quantization_config=config)
    with pytest.raises(CheckpointError, match="wanted none, as `ignore` names it"):
        Checkpoint.open(tmp_path)


def test_a_layer_of_two_kinds_is_refused(tmp_path):
    tensors = layer(tmp_path, "gptq") | {"layer.weight": torch.ones(SHAPE)}
    with pytest.raises(CheckpointError, match=r"layer\.weight': got it beside g_idx, qscales|qw"):
        opened(tmp_path, tensors)


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_a_damaged_scale_of_activations_is_named(tmp_path, value):
    tensors = layer(tmp_path, "fp8") | {"layer.input_scale": torch.tensor([value])}
    with pytest.raises(CheckpointError, match=r"layer\.input_scale': got .*, wanted finite"):
        opened(tmp_path, tensors)


def test_quantised_tensors_that_nothing_declares_are_refused(tmp_path):
    tensors = layer(tmp_path, "int8")
    edit_config(tmp_path, quantization_config=...)
    with pytest.raises(CheckpointError, match=r"layer.weight: got I8 .quantised weights need a"):
        opened(tmp_path, tensors)


def test_a_bias_that_the_model_does_not_have_and_is_not_zeros_is_refused(tmp_path):
    tensors = layer(tmp_path, "gptq") | {"layer.bias": torch.ones(32)}
    with pytest.raises(CheckpointError, match=r"unexpected: 'layer\.bias'"):
        opened(tmp_path, tensors)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=15)
@given(data=st.data())
def test_any_header_is_read_or_refused(tmp_path, name, data):
    """Nothing but CheckpointError leaves a folder whose tensors have other types and shapes."""
    tensors = layer(tmp_path, name)
    part = data.draw(st.sampled_from(sorted(tensors)))
    kinds = [torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.bool]
    kind = data.draw(st.sampled_from([*kinds, torch.float8_e4m3fn, tensors[part].dtype]))
    shape = data.draw(st.lists(st.integers(0, 40), max_size=3))
    assume(kind != tensors[part].dtype or tuple(shape) != tuple(tensors[part].shape))
    fill = data.draw(st.integers(0, 100))
    tensors[part] = torch.full(shape, fill, dtype=torch.float32).to(kind)
    try:
        weight = opened(tmp_path, tensors)
    except CheckpointError:
        return
    assert weight.shape == SHAPE


REFUSED = {
    "bitsandbytes": "dequantize",
    "mxfp4": "dequantize",
    "torchao": "llm-compressor",
    "gguf": "converted from",
    "hqq": "unquantised",
    "quanto": "unquantised",
    "eetq": "unquantised",
    "of next year": "unquantised",
}


@pytest.mark.parametrize("key", ["load_in_8bit", "_load_in_4bit"])
def test_bitsandbytes_is_known_by_its_settings(tmp_path, key):
    tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    edit_config(tmp_path, quantization_config={key: True, "llm_int8_threshold": 6.0})
    with pytest.raises(CheckpointError, match=r"got 'bitsandbytes', wanted .*; load it with trans"):
        load_decoder(tmp_path)


@pytest.mark.parametrize("name", ["gptq", "awq", "pack"])
def test_packed_weights_that_nothing_declares_are_refused(tmp_path, name):
    tensors = layer(tmp_path, name)
    edit_config(tmp_path, quantization_config=...)
    with pytest.raises(CheckpointError, match="quantised weights need a quantization_config in"):
        opened(tmp_path, tensors)


@pytest.mark.parametrize("method", REFUSED)
def test_a_method_that_is_not_read_is_refused_by_name(tmp_path, method):
    tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    edit_config(tmp_path, quantization_config={"quant_method": method})
    named = f"got '{method}', wanted a quant_method of .*gptq.*; .*{REFUSED[method]}"
    with pytest.raises(CheckpointError, match=f"^config.json: quantization_config: {named}"):
        load_decoder(tmp_path)


def weights_of(name: str, **changes: object) -> dict:
    config = json.loads(json.dumps(FORMATS[name].config))
    config["config_groups"]["group_0"]["weights"] |= changes
    return config


AWQ_WITHOUT_VERSION = {k: v for k, v in FORMATS["awq"].config.items() if k != "version"}
WRONG = [
    ("bits", FORMATS["gptq"].config | {"bits": 3}),
    ("bits", FORMATS["gptq"].config | {"bits": "4"}),
    ("bits", FORMATS["gptq"].config | {"bits": True}),
    ("group_size", FORMATS["gptq"].config | {"group_size": 0}),
    ("group_size", FORMATS["gptq"].config | {"group_size": None}),
    ("desc_act", FORMATS["gptq"].config | {"desc_act": 1}),
    ("checkpoint_format", FORMATS["gptq"].config | {"checkpoint_format": "marlin"}),
    ("pack_dtype", FORMATS["gptq"].config | {"pack_dtype": "int64"}),
    ("dynamic", FORMATS["gptq"].config | {"dynamic": {"+:.*down": {"bits": 8}}}),
    ("rotation", FORMATS["gptq"].config | {"rotation": "hadamard"}),
    ("extra_config", FORMATS["auto-round"].config | {"extra_config": {"lm_head": {"bits": 8}}}),
    (
        "extra_config",
        FORMATS["auto-round"].config | {"extra_config": {"lm_head": {"group_size": 8}}},
    ),
    (
        "extra_config",
        FORMATS["auto-round"].config | {"extra_config": {"x": {"data_type": "mx_fp"}}},
    ),
    ("extra_config", FORMATS["auto-round"].config | {"extra_config": {"lm_head": None}}),
    ("packing_format", FORMATS["auto-round"].config | {"packing_format": "auto_round:marlin"}),
    ("data_type", FORMATS["auto-round"].config | {"data_type": "mx_fp"}),
    ("bits", FORMATS["awq"].config | {"bits": 8}),
    ("version", FORMATS["awq"].config | {"version": "gemv"}),
    ("format", AWQ_WITHOUT_VERSION | {"format": "llm-awq"}),
    ("zero_point", FORMATS["awq"].config | {"zero_point": False}),
    ("modules_to_not_convert", FORMATS["awq"].config | {"modules_to_not_convert": "lm_head"}),
    ("fmt", FORMATS["fp8-inverse"].config | {"fmt": "e5m2"}),
    ("weight_block_size", FORMATS["fp8-inverse"].config | {"weight_block_size": [128]}),
    ("weight_block_size", FORMATS["fp8-inverse"].config | {"weight_block_size": [128, 0]}),
    ("format", FORMATS["pack"].config | {"format": "nvfp4-pack-quantized"}),
    ("format", FORMATS["pack"].config | {"format": "marlin-24"}),
    ("config_groups", FORMATS["pack"].config | {"config_groups": {}}),
    ("config_groups", FORMATS["pack"].config | {"config_groups": None}),
    ("transform_config", FORMATS["pack"].config | {"transform_config": {"R1": {}}}),
    ("sparsity_config.format", FORMATS["int8"].config | {"sparsity_config": {"format": "sparse"}}),
    ("ignore", FORMATS["int8"].config | {"ignore": "lm_head"}),
    ("ignore", FORMATS["int8"].config | {"ignore": ["re:(a+)+$"]}),
    ("ignore", FORMATS["int8"].config | {"ignore": ["re:" + "a*" * 9]}),
    ("ignore", FORMATS["int8"].config | {"ignore": ["re:("]}),
    ("ignore", FORMATS["int8"].config | {"ignore": ["re:(?x)(a+) +$"]}),
    ("group_0.weights.num_bits", weights_of("pack", num_bits=3)),
    ("group_0.weights.type", weights_of("pack", type="float")),
    ("group_0.weights.strategy", weights_of("pack", strategy="tensor_group")),
    ("group_0.weights.strategy", weights_of("pack", strategy="block")),
    ("group_0.weights.group_size", weights_of("pack", group_size=-1)),
    ("group_0.weights.actorder", weights_of("pack-8", actorder="group")),
    ("group_0.weights.symmetric", weights_of("fp8", symmetric=False)),
    ("group_0.weights.dynamic", weights_of("int8", dynamic=True)),
    ("group_0.weights.block_structure", weights_of("fp8-block", block_structure="64x64")),
]


@pytest.mark.parametrize(("key", "config"), WRONG, ids=[key for key, _ in WRONG])
def test_settings_that_are_not_read_are_named(key, config):
    wanted = rf"^config.json: quantization_config.*{key}.*: got .*, wanted .*; use an unquantised"
    with pytest.raises(CheckpointError, match=wanted):
        Config({"quantization_config": config})


@pytest.mark.parametrize("values", [3, [], "gptq", {}, {"quant_method": []}])
def test_what_is_no_configuration_is_named(values):
    with pytest.raises(CheckpointError, match=r"^config.json: quantization_config: got"):
        method_of({"quantization_config": values})


def test_values_that_repr_cannot_follow_are_named():
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    config = FORMATS["gptq"].config | {"bits": deep}
    with pytest.raises(CheckpointError, match=r"bits: got a list nested too deeply, wanted"):
        method_of({"quantization_config": config})
    with pytest.raises(CheckpointError, match=r"hidden_size: got a list nested too deeply, wanted"):
        Config({"hidden_size": deep}).size("hidden_size")


@pytest.mark.parametrize("model_type", [[], {}, 3, None])
def test_a_model_type_that_is_no_name_has_no_conv1d(tmp_path, model_type):
    tensors = layer(tmp_path, "gptq")
    edit_config(tmp_path, model_type=model_type)
    assert opened(tmp_path, tensors).shape == SHAPE


def test_a_live_model_is_not_dequantised(tmp_path):
    tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    config = read_config(tmp_path) | {"quantization_config": FORMATS["gptq"].config}
    with pytest.raises(
        CheckpointError, match=r"quantization_config: got .*, wanted None in a live"
    ):
        build_decoder(config, {})


def test_a_folder_says_which_layer_is_wrong(tmp_path):
    reference = tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    quantise(tmp_path, reference, gptq())
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.up_proj.scales"
    save_file(tensors | {name: tensors[name] * float("nan")}, path)
    with pytest.raises(CheckpointError, match=rf"^model.safetensors: tensor '{name}': got nan"):
        load_decoder(tmp_path)


def test_targets_that_choose_no_group_are_refused(tmp_path):
    form = Format(FORMATS["int8"].write, json.loads(json.dumps(FORMATS["int8"].config)))
    form.config["config_groups"]["group_0"]["targets"] = ["re:model.*"]
    write_layer(tmp_path, form, np.ones(SHAPE, "f"))
    with pytest.raises(CheckpointError, match="config_groups: got '0 groups for layer', wanted"):
        Checkpoint.open(tmp_path)

"""Scales of a cache in float8, as compressed-tensors stores them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusewire.errors import CheckpointError
from fusewire.models import load_decoder
from fusewire.weights import Checkpoint
from safetensors.torch import load_file, save_file

from tests.models.paged_texts import logits_in_pieces
from tests.models.tiny_decoders import tiny_decoder, transformers_logits
from tests.reference import edit_config
from tests.tolerance import MODEL_FP32

ATTENTION = "layers.0.self_attn"
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
REMEDY = "; leave kv_cache_dtype out, or remove kv_cache_scheme from config.json"


def folder_with(folder, tensors: dict[str, list[float]], **scheme: Any):
    """A decoder's folder of which the cache alone was calibrated; the transformers model."""
    reference = tiny_decoder(folder, "llama", num_hidden_layers=1)
    path = folder / "model.safetensors"
    scales = {f"model.{ATTENTION}.{name}": torch.tensor(each) for name, each in tensors.items()}
    save_file(load_file(path) | scales, path, metadata={"format": "pt"})
    config: dict[str, Any] = {"quant_method": "compressed-tensors", "config_groups": {}}
    edit_config(folder, quantization_config=config | {"kv_cache_scheme": SCHEME | scheme})
    return reference


@pytest.mark.parametrize("names", [("k_scale", "v_scale"), ("k_proj.output_scale",) * 2])
@pytest.mark.parametrize("form", [[0.5], 0.5])
def test_each_attention_has_its_own(tmp_path, names, form):
    key, value = names[0], names[1].replace("k_proj", "v_proj")
    folder_with(tmp_path, {key: form, value: [0.25]})
    assert Checkpoint.open(tmp_path, "model").cache_scales.of(ATTENTION) == (0.5, 0.25)


def test_a_folder_without_a_scheme_has_none(tmp_path):
    tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    assert Checkpoint.open(tmp_path, "model").cache_scales.of(ATTENTION) == (1.0, 1.0)


def test_a_folder_of_fp8_has_them_without_a_scheme(tmp_path):
    folder_with(tmp_path, {"k_scale": [0.5], "v_scale": [0.25], "k_proj.output_scale": [3.0]})
    edit_config(tmp_path, quantization_config={"quant_method": "fp8", "weight_block_size": None})
    found = Checkpoint.open(tmp_path, "model").cache_scales
    assert found.of(ATTENTION) == (0.5, 0.25)
    assert found.of("layers.1.self_attn") == (1.0, 1.0)


def test_a_folder_whose_cache_alone_was_calibrated_is_read(tmp_path):
    reference = folder_with(tmp_path, {"k_scale": [0.5], "v_scale": [0.25]})
    texts = [[3, 7, 9, 40]]
    [got] = logits_in_pieces(load_decoder(tmp_path), texts, None)
    [wanted] = transformers_logits(reference, texts)
    assert abs(got - wanted).max() <= MODEL_FP32


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ({"type": "int"}, "kv_cache_scheme.type: got 'int', wanted 'float'"),
        ({"num_bits": 4}, "kv_cache_scheme.num_bits: got 4, wanted 8"),
        ({"strategy": "attn_head"}, "kv_cache_scheme.strategy: got 'attn_head', wanted 'tensor'"),
        ({"symmetric": False}, "kv_cache_scheme.symmetric: got False, wanted True"),
        ({"dynamic": True}, "kv_cache_scheme.dynamic: got True, wanted False"),
    ],
)
def test_another_scheme_is_refused_where_it_is_asked_for(tmp_path, scheme, words):
    folder_with(tmp_path, {"k_scale": [0.5], "v_scale": [0.25]}, **scheme)
    load_decoder(tmp_path)  # with a cache that has no scales
    with pytest.raises(CheckpointError, match=words + REMEDY):
        Checkpoint.open(tmp_path, "model").cache_scales.of(ATTENTION)


def test_one_that_lacks_or_is_not_a_number_is_refused(tmp_path):
    folder_with(tmp_path, {"k_scale": [0.5]})
    with pytest.raises(CheckpointError, match=f"tensor '{ATTENTION}.v_scale': got none.*{REMEDY}"):
        Checkpoint.open(tmp_path, "model").cache_scales.of(ATTENTION)
    folder = tmp_path / "heads"
    folder.mkdir()
    folder_with(folder, {"k_scale": [0.5, 0.5], "v_scale": [0.25]})
    with pytest.raises(CheckpointError, match=rf"k_scale': got \[2\], wanted one number{REMEDY}"):
        Checkpoint.open(folder, "model").cache_scales.of(ATTENTION)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_damaged_one_is_found_when_the_folder_is_read(tmp_path, wrong):
    folder_with(tmp_path, {"k_scale": [wrong], "v_scale": [0.25]})
    with pytest.raises(CheckpointError, match=r"k_scale': got .*, wanted finite and greater"):
        Checkpoint.open(tmp_path)

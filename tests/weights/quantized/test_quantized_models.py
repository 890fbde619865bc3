"""A quantised folder answers as transformers does with the weights that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.models import check_folder, load_decoder, load_model
from fusewire.models.decoder import DecoderModel
from fusewire.weights import Checkpoint
from safetensors.torch import load_file, save_file

from tests.models.oracle import RAGGED, largest_difference
from tests.models.paged_texts import logits_in_pieces
from tests.models.tiny_decoders import random_ids, tiny_decoder, transformers_logits
from tests.reference import edit_config, tiny_checkpoint
from tests.tolerance import MODEL_FP32
from tests.weights.quantized.writers import (
    FORMATS,
    Format,
    awq,
    block_fp8,
    gptq,
    int_quantized,
    pack_quantized,
    quantise,
    write_layer,
)

ONE_LAYER = {"num_hidden_layers": 1}


def difference(reference: torch.nn.Module, model: DecoderModel) -> float:
    sequences = random_ids((9, 1, 33))
    ours = logits_in_pieces(model, sequences, None)
    theirs = transformers_logits(reference, sequences)
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"gptq-2"}))
def test_a_decoder_of_stacked_projections(tmp_path, name):
    """q, k and v, and gate and up, become one matrix each."""
    reference = tiny_decoder(tmp_path, "llama", **ONE_LAYER)
    before = transformers_logits(reference, random_ids((9,)))
    quantise(tmp_path, reference, FORMATS[name])
    check_folder(tmp_path, "generate")
    assert difference(reference, load_decoder(tmp_path)) <= MODEL_FP32
    after = transformers_logits(reference, random_ids((9,)))
    assert np.abs(before[0] - after[0]).max() > 10 * MODEL_FP32  # it is another model


@pytest.mark.parametrize(
    "form", [block_fp8(), pack_quantized(act_order=True), gptq(symmetric=False)]
)
def test_a_tied_head_in_shards(tmp_path, form):
    reference = tiny_decoder(tmp_path, "qwen3", tie_word_embeddings=True, **ONE_LAYER)
    quantise(tmp_path, reference, form, shards=3)
    model = load_decoder(tmp_path)
    assert difference(reference, model) <= MODEL_FP32


def test_a_quantised_head(tmp_path):
    reference = tiny_decoder(tmp_path, "llama", vocab_size=136, **ONE_LAYER)
    quantise(tmp_path, reference, gptq(), plain=())
    assert difference(reference, load_decoder(tmp_path)) <= MODEL_FP32


def test_a_quantised_head_that_auto_round_names(tmp_path):
    """With the settings of all layers, beside a layer that is not quantised."""
    form = gptq(method="auto-round")
    head = {"bits": 4, "group_size": 16, "sym": True, "data_type": "int", "act_bits": 16}
    down = {"bits": 16, "data_type": "float"}
    extra = {"lm_head": head, "model.layers.0.mlp.down_proj": down}
    reference = tiny_decoder(tmp_path, "llama", vocab_size=136, **ONE_LAYER)
    form = Format(form.write, form.config | {"extra_config": extra})
    quantise(tmp_path, reference, form, plain=("down_proj",))
    assert difference(reference, load_decoder(tmp_path)) <= MODEL_FP32


@pytest.mark.parametrize("form", [int_quantized(), block_fp8(), pack_quantized(symmetric=False)])
def test_an_encoder(tmp_path, form):
    reference = tiny_checkpoint(tmp_path, "bert", "classify", **ONE_LAYER)
    quantise(tmp_path, reference, form, plain=("pooler.dense", "classifier"))
    model = load_model(tmp_path, "classify")
    assert largest_difference(reference, model, "classify", RAGGED) <= MODEL_FP32


@pytest.mark.parametrize(
    "form", [gptq(), int_quantized(), pack_quantized(act_order=True, symmetric=False)]
)
def test_conv1d_is_stored_as_a_linear_layer(tmp_path, form):
    """GPT-2 stores [in_features, out_features]; its attention's output projection is square, so
    that no shape tells."""
    reference = tiny_decoder(tmp_path, "gpt2", **ONE_LAYER)
    quantise(tmp_path, reference, form)
    assert difference(reference, load_decoder(tmp_path)) <= MODEL_FP32


def without_layers(form: Format, *ignore: str) -> Format:
    return Format(form.write, form.config | {"ignore": list(ignore)})


@pytest.mark.parametrize("ignore", ["re:.*self_attn.*", "model.layers.0.self_attn.k_proj"])
def test_ignored_layers_are_plain(tmp_path, ignore):
    form = without_layers(pack_quantized(), "lm_head", ignore)
    plain = ("lm_head", "q_proj", "k_proj", "v_proj", "o_proj") if ":" in ignore else ("k_proj",)
    reference = tiny_decoder(tmp_path, "llama", vocab_size=136, **ONE_LAYER)
    quantise(tmp_path, reference, form, plain=("lm_head", *plain))
    assert difference(reference, load_decoder(tmp_path)) <= MODEL_FP32


@pytest.mark.parametrize("tied", [False, True])
def test_a_table_of_words_has_a_group_of_its_own(tmp_path, tied):
    """Targets by class: a table is told by its name."""
    reference = tiny_decoder(tmp_path, "llama", tie_word_embeddings=tied, **ONE_LAYER)
    layers, table = pack_quantized(), pack_quantized(8, -1)
    groups = {"group_0": layers.config["config_groups"]["group_0"]}
    groups["group_1"] = table.config["config_groups"]["group_0"] | {"targets": ["Embedding"]}
    quantise(tmp_path, reference, Format(layers.write, layers.config | {"config_groups": groups}))
    path, words = tmp_path / "model.safetensors", reference.model.embed_tokens.weight
    written, tensors = table.write(words.detach().numpy()), load_file(path)
    del tensors["model.embed_tokens.weight"]
    save_file(tensors | {f"model.embed_tokens.{k}": v for k, v in written.tensors.items()}, path)
    with torch.no_grad():
        words.copy_(torch.from_numpy(written.weight))
    assert difference(reference, load_decoder(tmp_path)) <= MODEL_FP32


def test_a_group_of_activations_alone_is_of_no_weights(tmp_path):
    form = pack_quantized()
    keys = {"targets": ["LlamaAttention"], "weights": None, "input_activations": {"num_bits": 8}}
    groups = form.config["config_groups"] | {"attention": keys}
    reference = tiny_decoder(tmp_path, "llama", **ONE_LAYER)
    quantise(tmp_path, reference, Format(form.write, form.config | {"config_groups": groups}))
    assert difference(reference, load_decoder(tmp_path)) <= MODEL_FP32


def test_groups_of_layers_have_their_own_formats(tmp_path):
    """Targets by pattern win over those by class."""
    reference = tiny_decoder(tmp_path, "llama", **ONE_LAYER)
    packed, bytes_ = pack_quantized(), int_quantized()
    quantise(tmp_path, reference, packed, plain=("lm_head", "down_proj"))
    config = packed.config | {"format": "mixed-precision"}
    rows = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    down = {"targets": ["re:.*down_proj$"], "weights": rows, "format": "int-quantized"}
    rest = packed.config["config_groups"]["group_0"] | {"format": "pack-quantized"}
    config["config_groups"] = {"group_0": rest, "group_1": down}
    others = ("lm_head", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj")
    quantise(tmp_path, reference, Format(bytes_.write, config), plain=others)
    assert difference(reference, load_decoder(tmp_path)) <= MODEL_FP32


@pytest.mark.parametrize("targets", [["layer", "re:lay.*"], ["re:.*", "re:lay.*"]])
@pytest.mark.parametrize("swapped", [False, True])
def test_of_targets_that_fit_a_name_wins_and_then_the_first_by_letters(tmp_path, targets, swapped):
    groups = [
        form.config["config_groups"]["group_0"] | {"targets": [target], "format": kind}
        for form, kind, target in zip(
            (pack_quantized(), int_quantized()),
            ("pack-quantized", "int-quantized"),
            targets,
            strict=True,
        )
    ]
    order = groups[::-1] if swapped else groups
    config = pack_quantized().config | {"config_groups": {str(i): g for i, g in enumerate(order)}}
    weight = np.random.default_rng(0).normal(size=(8, 32)).astype("f")
    layer = write_layer(tmp_path, Format(pack_quantized().write, config), weight)
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("layer.weight"), layer.weight)


def test_scales_of_activations_and_caches_are_not_needed(tmp_path):
    reference = tiny_decoder(tmp_path, "llama", **ONE_LAYER)
    form = FORMATS["fp8-tensor"]
    quantise(tmp_path, reference, form)
    path = tmp_path / "model.safetensors"
    scales = {
        f"model.layers.0.self_attn.{name}": torch.tensor([0.5], dtype=torch.bfloat16)
        for name in ("q_proj.input_scale", "k_scale", "v_scale", "k_proj.output_scale")
    }
    save_file(load_file(path) | scales, path)
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    edit_config(tmp_path, quantization_config=form.config | {"kv_cache_scheme": cache})
    assert difference(reference, load_decoder(tmp_path)) <= MODEL_FP32


def test_a_bias_of_zeros_that_the_model_does_not_have(tmp_path):
    """Early AutoGPTQ stores one for each layer."""
    reference = tiny_decoder(tmp_path, "llama", **ONE_LAYER)
    quantise(tmp_path, reference, awq())
    path = tmp_path / "model.safetensors"
    bias = {"model.layers.0.mlp.down_proj.bias": torch.zeros(48, dtype=torch.float16)}
    save_file(load_file(path) | bias, path)
    assert difference(reference, load_decoder(tmp_path)) <= MODEL_FP32

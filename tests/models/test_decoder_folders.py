"""A decoder's folder is read, or rejected by name and value; so are steps out of range."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.models import build_decoder, load_decoder, read_config, tasks_of
from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.registry import DECODERS, decoder
from fusewire.models.step_batch import StepBatch
from safetensors.numpy import load_file

from tests.models.paged_texts import logits_in_pieces
from tests.models.test_decoders import LLAMA3, LONGROPE, YARN
from tests.models.test_model_refusals import edit_weights, rename
from tests.models.tiny_decoders import LONGEST, VOCABULARY, WINDOW, random_ids, tiny_decoder
from tests.reference import edit_config


def blueprint_of(folder) -> Blueprint:
    values = read_config(folder)
    return decoder(values).blueprint(Config(values))


@pytest.mark.parametrize("model_type", DECODERS)
def test_the_task_is_generate(tmp_path, model_type):
    tiny_decoder(tmp_path, model_type, num_hidden_layers=1)
    assert tasks_of(read_config(tmp_path)) == "generate"


def test_a_class_without_a_language_head_is_refused(tmp_path):
    tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    edit_config(tmp_path, architectures=["LlamaForSequenceClassification"])
    wanted = r"architectures: got 'LlamaFor.*', wanted one of LlamaForCausalLM; .* \(generate\)"
    with pytest.raises(CheckpointError, match=wanted):
        tasks_of(read_config(tmp_path))


def test_an_encoder_is_not_a_decoder(tmp_path):
    tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    edit_config(tmp_path, model_type="bert")
    with pytest.raises(CheckpointError, match=r"model_type: got 'bert', wanted one of gpt2"):
        load_decoder(tmp_path)


@pytest.mark.parametrize("model_type", DECODERS)
def test_a_missing_tensor_is_named(tmp_path, model_type):
    tiny_decoder(tmp_path, model_type, num_hidden_layers=1)
    prefix = blueprint_of(tmp_path).prefix + "."  # messages have names without the prefix
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        wanted = name.removeprefix(prefix).replace("embed_out", "lm_head")
        edit_weights(tmp_path, lambda tensors, name=name: tensors.pop(name))
        with pytest.raises(CheckpointError, match=rf"missing: {wanted} \["):
            load_decoder(tmp_path)
        edit_weights(
            tmp_path, lambda tensors, name=name, tensor=tensor: tensors.update({name: tensor})
        )


@pytest.mark.parametrize("model_type", DECODERS)
def test_a_leftover_tensor_is_named(tmp_path, model_type):
    tiny_decoder(tmp_path, model_type, num_hidden_layers=1)
    edit_weights(tmp_path, lambda tensors: tensors.update({"layers.9.extra": np.ones(2, "f")}))
    with pytest.raises(CheckpointError, match=r"unexpected: 'layers.9.extra'"):
        load_decoder(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("gpt2", "activation_function", "mish"),
        ("gpt2", "n_head", 5),
        ("gpt2", "n_inner", 0),
        ("gpt2", "scale_attn_weights", "yes"),
        ("gpt2", "add_cross_attention", True),
        ("gpt2", "n_positions", 10**9),
        ("gpt_neox", "use_parallel_residual", None),
        ("gpt_neox", "rotary_pct", -0.25),
        ("opt", "layer_norm_elementwise_affine", False),
        ("opt", "word_embed_proj_dim", -1),
        ("opt", "do_layer_norm_before", 1),
        ("llama", "num_key_value_heads", 3),
        ("llama", "num_key_value_heads", "2"),
        ("llama", "head_dim", 0),
        ("llama", "head_dim", 7),
        ("llama", "hidden_act", "laplace"),
        ("llama", "rms_norm_eps", 0),
        ("llama", "rope_theta", -1.0),
        ("llama", "partial_rotary_factor", 0.5),
        ("llama", "max_position_embeddings", 1 << 30),
        ("llama", "eos_token_id", "</s>"),
        ("llama", "eos_token_id", [2, -1]),
        ("llama", "tie_word_embeddings", "no"),
        ("llama", "quantization_config", {"bits": 4}),
        ("llama", "is_causal", False),
        ("mistral", "sliding_window", 0),
        ("mistral", "layer_types", ["full_attention"] * 3),
        ("qwen2", "layer_types", ["sliding_attention"] * 2),
        ("qwen2", "layer_types", ["full_attention", "chunked_attention", "full_attention"]),
        ("qwen2", "max_window_layers", -1),
        ("qwen3", "use_sliding_window", 1),
        ("gemma2", "use_bidirectional_attention", True),
        ("gemma2", "attn_logit_softcapping", -5.0),
        ("gemma2", "sliding_window", None),
        ("gemma2", "query_pre_attn_scalar", 0),
        ("gemma2", "hidden_activation", None),
        ("gemma3_text", "attn_logit_softcapping", 50.0),
        ("gemma3_text", "final_logit_softcapping", "30"),
        ("gemma3_text", "rope_parameters", {"rope_type": "linear"}),
        ("phi3", "partial_rotary_factor", 1.5),
        ("phi3", "sliding_window", -1),
    ],
)
def test_an_option_that_changes_the_result_is_refused(tmp_path, model_type, key, value):
    tiny_decoder(tmp_path, model_type)
    edit_config(tmp_path, **{key: value})
    if key in ("rope_theta", "partial_rotary_factor"):
        edit_config(tmp_path, rope_parameters=...)
    named = rf"(rope_parameters\.)?{key}"
    with pytest.raises(CheckpointError, match=f"^config.json: {named}: got .*, wanted .*; "):
        load_decoder(tmp_path)


def test_a_switched_off_window_is_not_guessed(tmp_path):
    tiny_decoder(tmp_path, "qwen2")
    edit_config(tmp_path, layer_types=["sliding_attention"] * 3, sliding_window=WINDOW)
    wanted = "use_sliding_window: got False, wanted true for layers of sliding_attention"
    with pytest.raises(CheckpointError, match=wanted):
        load_decoder(tmp_path)


@pytest.mark.parametrize(("model_type", "given"), [("llama", "su"), ("phi3", "linear")])
def test_a_scaling_of_another_architecture_is_refused(tmp_path, model_type, given):
    tiny_decoder(tmp_path, model_type)
    edit_config(tmp_path, rope_scaling={"type": given, "factor": 2.0})
    with pytest.raises(CheckpointError, match=f"rope_scaling.type: got '{given}', wanted one of"):
        load_decoder(tmp_path)


OLDER = [
    (
        "llama",
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    ),
    ("qwen2", {"rope_parameters": YARN}, {"rope_theta": 1e4, "rope_scaling": YARN}),
    ("mistral", {}, {"rope_theta": 1e4}),
    ("gpt_neox", {"rotary_pct": 0.5}, {"rotary_emb_base": 10000, "rotary_pct": 0.5}),
    (
        "gemma3_text",
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 3,
        },
    ),
    ("gemma2", {}, {"rope_theta": 1e4}),
    ("gemma2", {}, {}),
    ("gemma3_text", {}, {"sliding_window_pattern": 3}),
    ("llama", {}, {}),
    (
        "phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": LONGEST // 2},
        {"rope_theta": 1e4, "rope_scaling": {**LONGROPE, "rope_type": ..., "type": "su"}},
    ),
]


@pytest.mark.parametrize(("model_type", "sizes", "older"), OLDER, ids=lambda each: str(each)[:20])
def test_configurations_of_before_transformers_5(tmp_path, model_type, sizes, older):
    tiny_decoder(tmp_path, model_type, **sizes)
    today = blueprint_of(tmp_path)
    scaling = older.get("rope_scaling")
    if scaling:
        older = older | {"rope_scaling": {k: v for k, v in scaling.items() if v is not ...}}
    edit_config(tmp_path, rope_parameters=..., layer_types=..., **older)
    assert blueprint_of(tmp_path) == today


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("gpt2", lambda name: name.removeprefix("transformer.")),
        ("gpt_neox", lambda name: name.replace("lm_head.", "embed_out.")),
        ("opt", lambda name: name.removeprefix("model.")),
    ],
)
def test_published_names_of_weights(tmp_path, model_type, change):
    tiny_decoder(tmp_path, model_type)
    prompts = random_ids((5, 2))
    today = logits_in_pieces(load_decoder(tmp_path), prompts, None)
    edit_weights(tmp_path, lambda tensors: rename(tensors, change))
    edit_weights(
        tmp_path,
        lambda tensors: tensors.update(
            {"h.0.attn.bias": np.ones((1, 1, 4, 4), "f")} if model_type == "gpt2" else {}
        ),
    )
    for got, wanted in zip(
        logits_in_pieces(load_decoder(tmp_path), prompts, None), today, strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


def test_a_live_model_is_the_same_as_its_folder(tmp_path):
    reference = tiny_decoder(tmp_path, "gemma2")
    arrays = {name: value.numpy() for name, value in reference.state_dict().items()}
    prompts = random_ids((5, 2))
    live = build_decoder(reference.config.to_dict(), arrays)
    for got, wanted in zip(
        logits_in_pieces(live, prompts, None),
        logits_in_pieces(load_decoder(tmp_path), prompts, None),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("value", "wanted"), [(7, (7,)), ([7, 9], (7, 9)), (None, (2,)), (..., (2,))]
)
def test_the_generation_config_says_what_ends_a_text_and_else_the_config(tmp_path, value, wanted):
    tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    values = {} if value is ... else {"eos_token_id": value}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    assert load_decoder(tmp_path).eos_token_ids == wanted


def test_an_ill_formed_generation_config_is_refused(tmp_path):
    tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "</s>"}')
    with pytest.raises(CheckpointError, match=r"generation_config.json: eos_token_id: got </s>"):
        load_decoder(tmp_path)


def test_the_cache_is_as_large_as_its_tokens(tmp_path):
    tiny_decoder(tmp_path, "llama", num_key_value_heads=1, head_dim=20)
    model = load_decoder(tmp_path)
    assert model.bytes_per_token == 2 * 3 * 20 * 4
    assert model.new_cache(5, 8).nbytes == 5 * 8 * model.bytes_per_token


STEP = StepBatch(
    input_ids=np.array([3, 4, 5], np.int64),
    positions=np.array([0, 1, 2], np.int32),
    cu_seqlens=np.array([0, 3], np.int32),
    context_lengths=np.array([3], np.int32),
    block_table=np.array([[0]], np.int32),
    logit_rows=np.array([2], np.int64),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": [3, -1, 5]}, f"input_ids: got -1, wanted 0..{VOCABULARY - 1}"),
        ({"input_ids": [3, VOCABULARY, 5]}, f"input_ids: got {VOCABULARY}, wanted 0.."),
        ({"positions": [94, 95, 96]}, "positions: got 96, wanted 0..95"),
        ({"logit_rows": [3]}, "logit_rows: got 3, wanted 0..2"),
        ({"input_ids": []}, "input_ids: got nothing, wanted 1 token or more"),
    ],
)
def test_a_step_out_of_range_never_reaches_a_kernel(tmp_path, change, message):
    tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    model = load_decoder(tmp_path)
    changed = {name: np.array(value, getattr(STEP, name).dtype) for name, value in change.items()}
    with pytest.raises(InvalidInput, match=message):
        model.step(dataclasses.replace(STEP, **changed), model.new_cache(4, 4))


def test_a_part_of_a_prompt_asks_for_no_logits(tmp_path):
    tiny_decoder(tmp_path, "llama", num_hidden_layers=1)
    model = load_decoder(tmp_path)
    middle = dataclasses.replace(STEP, logit_rows=np.zeros(0, np.int64))
    assert model.step(middle, model.new_cache(1, 4)).shape == (0, VOCABULARY)

"""The encoder of an encoder-decoder model gives the outputs of transformers, from its own folder or
from that of the whole model."""

from __future__ import annotations

import re

import fusewire
import pytest
import torch
import transformers
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.models import load_model, tasks_of
from fusewire.models.registry import SEQ2SEQ_ENCODERS
from fusewire.parity import parity
from fusewire.placement import Placement

from tests.models.oracle import (
    RAGGED,
    allowed_errors,
    differences,
    excess,
    fusewire_answers,
    largest_difference,
    random_sequences,
)
from tests.models.tiny_seq2seq import SEQ2SEQ, tiny_encoder, tiny_seq2seq
from tests.places import CPU, CPU_TARGETS, GPU_FP32, GPU_HALVES, on_gpu
from tests.reference import edit_config
from tests.tolerance import BATCHED_VERSUS_ALONE, MODEL_FP32

FP32 = pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
EVERY_ONE = pytest.mark.parametrize("model_type", SEQ2SEQ)
LONG = (300, 1, 129, 257)  # beyond the distance from which positions share a bucket


@FP32
@EVERY_ONE
def test_hidden_states_equal_transformers(tmp_path, model_type, place: Placement):
    reference = tiny_encoder(tmp_path, model_type).to(place.device)
    model = load_model(tmp_path, "hidden", place)
    for lengths in (RAGGED, LONG):
        assert largest_difference(reference, model, "hidden", lengths) <= MODEL_FP32


@FP32
@EVERY_ONE
@pytest.mark.parametrize("ending", ["whole", "Model"])
def test_a_whole_models_encoder_is_served(tmp_path, model_type, ending, place: Placement):
    whole = tiny_seq2seq(tmp_path, model_type, "" if ending == "whole" else ending)
    reference = whole.get_encoder().to(place.device)
    model = load_model(tmp_path, "embed", place)
    assert largest_difference(reference, model, "embed") <= MODEL_FP32


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@EVERY_ONE
def test_every_instruction_set_gives_the_answer_alone_and_in_a_batch(tmp_path, model_type, place):
    reference = tiny_encoder(tmp_path, model_type)
    model = load_model(tmp_path, "hidden", place)
    assert largest_difference(reference, model, "hidden") <= MODEL_FP32
    sequences = random_sequences(model, (*RAGGED, *LONG), seed=1)
    together = fusewire_answers(model, sequences, "hidden")
    alone = [fusewire_answers(model, [sequence], "hidden")[0] for sequence in sequences]
    for name, difference in differences(alone, together).items():
        assert difference <= BATCHED_VERSUS_ALONE, name


@FP32
@pytest.mark.parametrize(
    ("model_type", "sizes"),
    [
        *(("t5", {"feed_forward_proj": word}) for word in ("gated-gelu", "gated-silu", "gelu")),
        ("t5", {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 20}),
        ("umt5", {"relative_attention_num_buckets": 64, "relative_attention_max_distance": 300}),
        ("t5", {"num_heads": 1, "d_kv": 128, "d_ff": 3}),
        ("mt5", {"num_heads": 6, "d_kv": 64, "d_model": 100, "d_ff": 77}),
        ("umt5", {"num_heads": 3, "d_kv": 2, "d_model": 6, "num_layers": 1}),
        ("t5", {"layer_norm_epsilon": 0.1}),
    ],
)
def test_options_and_odd_sizes(tmp_path, model_type, sizes, place: Placement):
    reference = tiny_encoder(tmp_path, model_type, **sizes).to(place.device)
    model = load_model(tmp_path, "hidden", place)
    assert largest_difference(reference, model, "hidden", LONG) <= MODEL_FP32


@pytest.mark.parametrize("place", GPU_HALVES[1:], indirect=True)
@EVERY_ONE
def test_in_bfloat16_it_is_as_right_as_transformers(tmp_path, model_type, place: Placement):
    reference = tiny_encoder(tmp_path, model_type).to(place.device)
    model = load_model(tmp_path, "hidden", place)
    sequences = random_sequences(model, (*RAGGED, *LONG))
    allowed = allowed_errors(reference, model, sequences)
    assert not excess(fusewire_answers(model, sequences, "hidden"), allowed)
    alone = [fusewire_answers(model, [sequence], "hidden")[0] for sequence in sequences]
    assert not excess(alone, allowed)


@pytest.mark.parametrize("place", GPU_HALVES[:1], indirect=True)
def test_float16_is_refused_and_bfloat16_its_stead_on_a_gpu(tmp_path, place: Placement):
    tiny_encoder(tmp_path, "t5")
    assert on_gpu(place)
    with pytest.raises(ConfigurationError, match=r"^dtype: got float16 .* wanted bfloat16"):
        load_model(tmp_path, "embed", place)
    model = load_model(tmp_path, "embed", Placement(place.device))
    assert model.place.dtype == "bfloat16"


def test_a_live_model_is_taken_over(tmp_path):
    encoder = tiny_seq2seq(tmp_path, "t5", "EncoderModel")
    ids = torch.randint(0, 100, (2, 9))
    wanted = encoder(ids).last_hidden_state
    for live in (
        encoder,
        transformers.T5ForConditionalGeneration._from_config(encoder.config).eval(),
    ):
        ours = fusewire.from_torch(live, "hidden")
        with torch.no_grad():
            wanted = live.get_encoder()(ids).last_hidden_state
        assert (ours(ids).last_hidden_state - wanted).abs().max() <= MODEL_FP32


@EVERY_ONE
@pytest.mark.parametrize("write", [tiny_encoder, tiny_seq2seq], ids=["alone", "whole"])
def test_check_compares_the_encoder(tmp_path, model_type, write):
    write(tmp_path, model_type)
    measured = parity(tmp_path, "hidden", sequences=4)
    alone = "EncoderModel" if SEQ2SEQ_ENCODERS[model_type].classes else "Encoder"
    assert measured.architecture == SEQ2SEQ[model_type][0] + alone
    assert measured.differences.keys() == {"last_hidden_state"}
    assert measured.passed, measured


def test_the_class_says_what_the_folder_is_for(tmp_path):
    tiny_encoder(tmp_path, "t5")
    assert fusewire.load(tmp_path).task == "embed"
    config = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
    assert tasks_of(config) == "generate"
    wanted = "got 'T5Model', wanted one of T5ForConditionalGeneration, T5EncoderModel; name the"
    with pytest.raises(CheckpointError, match=wanted + r" task .* \(generate, embed, hidden\)"):
        tasks_of(config | {"architectures": ["T5Model"]})


@pytest.mark.parametrize("task", ["classify", "tag", "answer", "fill"])
def test_a_task_that_needs_a_head_is_refused(tmp_path, task):
    tiny_seq2seq(tmp_path, "t5", "ForConditionalGeneration")
    message = f"model_type: got t5, which has no head for {task}, .* tasks embed, hidden"
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path, task)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("feed_forward_proj", "gated-mish"),
        ("feed_forward_proj", "relu-gated"),
        ("feed_forward_proj", None),
        ("dense_act_fn", "silu"),
        ("is_gated_act", True),
        ("relative_attention_num_buckets", 3),
        ("relative_attention_max_distance", 8),
        ("relative_attention_max_distance", 10**9),
        ("layer_norm_epsilon", 0),
        ("num_layers", 10**9),
        ("d_kv", "20"),
        ("is_decoder", True),
        ("quantization_config", {"bits": 4}),
    ],
)
def test_an_option_that_changes_the_result_is_refused(tmp_path, key, value):
    tiny_encoder(tmp_path, "t5")
    edit_config(tmp_path, **{key: value})
    with pytest.raises(CheckpointError, match=f"^config.json: {key}: got .*, wanted .*; "):
        load_model(tmp_path, "hidden")


def test_an_encoder_decoder_is_no_encoder_of_another_kind(tmp_path):
    config = {"model_type": "bert", "is_encoder_decoder": True, "architectures": ["BertModel"]}
    with pytest.raises(CheckpointError, match=r"is_encoder_decoder: got True, wanted False"):
        tasks_of(config)


def test_a_missing_tensor_of_the_encoder_is_named_and_the_decoders_are_not_looked_at(tmp_path):
    tiny_seq2seq(tmp_path, "umt5", "ForConditionalGeneration")
    edit_config(tmp_path, num_layers=4, num_decoder_layers=9)
    with pytest.raises(CheckpointError, match=re.escape("missing: encoder.block.3.layer.0")) as e:
        load_model(tmp_path, "hidden")
    assert "decoder" not in str(e.value)
    edit_config(tmp_path, num_layers=2)
    with pytest.raises(CheckpointError, match=r"unexpected: 'encoder\.block\.2\."):
        load_model(tmp_path, "hidden")
    edit_config(tmp_path, num_layers=3)
    assert load_model(tmp_path, "hidden").hidden_size == 48

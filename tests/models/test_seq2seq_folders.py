"""The folder of an encoder-decoder model is read, or rejected by name and value; so are sources and
steps out of range."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fusewire import kernels
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.models import (
    Seq2SeqModel,
    SourceBatch,
    build_decoder,
    check_folder,
    load_decoder,
    load_model,
    tasks_of,
)
from fusewire.models.registry import SEQ2SEQ
from fusewire.models.step_batch import SourceTable, StepBatch
from safetensors.numpy import load_file

from tests.models.paged_texts import logits_in_pieces
from tests.models.test_model_refusals import edit_weights, rename
from tests.models.tiny_decoders import tiny_decoder
from tests.models.tiny_seq2seq import (
    LONGEST,
    VOCABULARY,
    random_texts,
    teacher_forced_logits,
    tiny_seq2seq,
)
from tests.reference import edit_config
from tests.tolerance import MODEL_FP32

EVERY_ONE = pytest.mark.parametrize("model_type", SEQ2SEQ)


def loaded(folder: Any) -> Seq2SeqModel:
    model = load_decoder(folder)
    assert isinstance(model, Seq2SeqModel)
    return model


def logits(folder: Any) -> list[np.ndarray]:
    model = loaded(folder)
    sources, targets = texts_for(model)
    return logits_in_pieces(model, targets, None, sources=sources)


def texts_for(model: Seq2SeqModel) -> tuple[list[list[int]], list[list[int]]]:
    return (
        random_texts(model.source_vocab_size, (5, 2)),
        random_texts(model.vocab_size, (3, 7), seed=1),
    )


@EVERY_ONE
def test_the_task_is_generate(tmp_path, model_type):
    tiny_seq2seq(tmp_path, model_type)
    check_folder(tmp_path, "generate")
    assert tasks_of(json.loads((tmp_path / "config.json").read_text())) == "generate"


@EVERY_ONE
def test_missing_and_leftover_tensors_are_named(tmp_path, model_type):
    tiny_seq2seq(tmp_path, model_type)
    stored = load_file(tmp_path / "model.safetensors")
    missing = next(name for name in stored if "k.weight" in name or "k_proj.weight" in name)
    edit_weights(tmp_path, lambda tensors: tensors.pop(missing))
    edit_weights(tmp_path, lambda tensors: tensors.update({"decoder.extra": np.ones(2, "f")}))
    wanted = rf"missing: {missing.removeprefix('model.')} \[.*; unexpected: 'decoder.extra'"
    for load in (load_decoder, lambda folder: check_folder(folder, "generate")):
        with pytest.raises(CheckpointError, match=wanted):
            load(tmp_path)


@pytest.mark.parametrize("name", ["lm_head", "encoder.embed_tokens", "decoder.embed_tokens"])
@pytest.mark.parametrize(("model_type", "prefix"), [("t5", ""), ("bart", "model.")])
@pytest.mark.parametrize("shared", [True, False])
def test_tied_tensors_may_be_stored_under_any_of_their_names(
    tmp_path, model_type, prefix, name, shared
):
    """Alone, or with the shared one and other values, which are then used for it alone."""
    tiny_seq2seq(tmp_path, model_type)
    first = f"{prefix}shared.weight"
    name = f"{'' if name == 'lm_head' else prefix}{name}.weight"

    def change(tensors: dict) -> None:
        tensors[name] = tensors[first] * np.float32(1.0 if shared else -1.25)
        if shared:
            del tensors[first]

    edit_weights(tmp_path, change)
    reference = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32
    ).eval()
    model = loaded(tmp_path)
    sources, targets = texts_for(model)
    wanted = teacher_forced_logits(reference, sources, targets)
    for got, other in zip(logits(tmp_path), wanted, strict=True):
        assert np.abs(got - other).max() <= MODEL_FP32


def test_a_flan_folder_has_a_head_of_its_own_and_does_not_scale(tmp_path):
    tiny_seq2seq(tmp_path, "t5", feed_forward_proj="gated-gelu")
    head = np.random.default_rng(3).standard_normal((VOCABULARY, 48), dtype=np.float32)
    edit_weights(tmp_path, lambda tensors: tensors.update({"lm_head.weight": head}))
    edit_config(tmp_path, tie_word_embeddings=False, scale_decoder_outputs=...)
    reference = transformers.T5ForConditionalGeneration.from_pretrained(
        tmp_path, attn_implementation="eager"
    ).eval()
    assert not reference.config.scale_decoder_outputs
    assert torch.equal(reference.lm_head.weight, torch.from_numpy(head))
    model = loaded(tmp_path)
    sources, targets = texts_for(model)
    wanted = teacher_forced_logits(reference, sources, targets)
    for got, other in zip(logits(tmp_path), wanted, strict=True):
        assert np.abs(got - other).max() <= MODEL_FP32


@pytest.mark.parametrize("model_type", ["t5", "umt5"])
def test_a_head_of_its_own_reads_what_is_not_scaled(tmp_path, model_type):
    tiny_seq2seq(tmp_path, model_type)
    edit_config(tmp_path, scale_decoder_outputs=..., tie_word_embeddings=...)
    scaled = logits(tmp_path)
    edit_config(tmp_path, tie_word_embeddings=False)
    for got, other in zip(logits(tmp_path), scaled, strict=True):
        np.testing.assert_allclose(got, other * 48**0.5, rtol=1e-4, atol=MODEL_FP32)


@pytest.mark.parametrize("model_type", ["bart", "marian"])
def test_a_bias_of_the_logits_that_is_not_stored_is_zero(tmp_path, model_type):
    tiny_seq2seq(tmp_path, model_type)
    bias = load_file(tmp_path / "model.safetensors")["final_logits_bias"]
    with_bias = logits(tmp_path)
    edit_weights(tmp_path, lambda tensors: tensors.pop("final_logits_bias"))
    check_folder(tmp_path, "generate")
    for got, other in zip(logits(tmp_path), with_bias, strict=True):
        np.testing.assert_allclose(got + bias, other, rtol=0, atol=MODEL_FP32)
        assert np.abs(got - other).max() > 1


@pytest.mark.parametrize("model_type", ["marian", "pegasus", "m2m_100"])
def test_stored_sinusoids_are_not_read(tmp_path, model_type):
    tiny_seq2seq(tmp_path, model_type)
    today = logits(tmp_path)
    tables = {
        f"model.{side}.embed_positions.weight": np.full((LONGEST, 48), np.nan, "f")
        for side in ("encoder", "decoder")
    }
    edit_weights(tmp_path, lambda tensors: tensors.update(tables))
    for got, wanted in zip(logits(tmp_path), today, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("model_type", ["bart", "marian", "m2m_100"])
def test_weights_without_the_prefix_of_the_base_model(tmp_path, model_type):
    tiny_seq2seq(tmp_path, model_type)
    today = logits(tmp_path)
    edit_weights(
        tmp_path, lambda tensors: rename(tensors, lambda name: name.removeprefix("model."))
    )
    for got, wanted in zip(logits(tmp_path), today, strict=True):
        np.testing.assert_array_equal(got, wanted)


@EVERY_ONE
def test_a_live_model_is_the_same_as_its_folder(tmp_path, model_type):
    reference = tiny_seq2seq(tmp_path, model_type)
    arrays = {name: value.numpy() for name, value in reference.state_dict().items()}
    live = build_decoder(reference.config.to_dict(), arrays)
    assert isinstance(live, Seq2SeqModel)
    sources, targets = texts_for(live)
    ours = logits_in_pieces(live, targets, None, sources=sources)
    for got, wanted in zip(ours, logits(tmp_path), strict=True):
        np.testing.assert_array_equal(got, wanted)


def ids_of(model: Seq2SeqModel) -> tuple[int, int | None, tuple[int, ...]]:
    return model.decoder_start_token_id, model.forced_bos_token_id, model.forced_eos_token_id


@pytest.mark.parametrize(
    ("config", "generation", "wanted"),
    [
        ({}, None, (2, None, (2,))),
        ({"forced_bos_token_id": 0, "decoder_start_token_id": 7}, None, (7, 0, (2,))),
        ({"forced_eos_token_id": None}, None, (2, None, ())),
        ({"forced_eos_token_id": [9, 4]}, None, (2, None, (9, 4))),
        ({"decoder_start_token_id": None, "bos_token_id": 5}, None, (5, None, (2,))),
        # transformers does not apply settings that generation_config.json lacks.
        ({"forced_bos_token_id": 4}, {"decoder_start_token_id": 3}, (3, None, ())),
        ({}, {"forced_bos_token_id": 11, "forced_eos_token_id": 12}, (2, 11, (12,))),
        ({}, {"bos_token_id": 6}, (6, None, ())),
    ],
    ids=str,
)
def test_the_tokens_that_begin_and_end_targets(tmp_path, config, generation, wanted):
    tiny_seq2seq(tmp_path, "bart", encoder_layers=1, decoder_layers=1)
    edit_config(tmp_path, **config)
    path = tmp_path / "generation_config.json"
    path.unlink()
    if generation is not None:
        path.write_text(json.dumps(generation))
    assert ids_of(loaded(tmp_path)) == wanted


def test_a_first_token_has_to_be_there(tmp_path):
    tiny_seq2seq(tmp_path, "t5", num_layers=1)
    (tmp_path / "generation_config.json").unlink()
    edit_config(tmp_path, decoder_start_token_id=...)
    message = "decoder_start_token_id: got nothing, wanted a token in 0..130; name it in"
    with pytest.raises(CheckpointError, match=message):
        load_decoder(tmp_path)
    assert load_model(tmp_path, "hidden").hidden_size == 48  # a task without generation


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("forced_bos_token_id", VOCABULARY, "forced_bos_token_id: got 131, wanted a token in 0.."),
        ("forced_eos_token_id", [1, VOCABULARY], "forced_eos_token_id: got 131, wanted a token in"),
        ("forced_bos_token_id", [1, 2], r"forced_bos_token_id: got \[1, 2\], wanted (a|one) token"),
        ("decoder_start_token_id", "</s>", "decoder_start_token_id: got .*</s>.*, wanted a token"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_ill_formed_tokens_are_refused(tmp_path, key, value, message, file):
    tiny_seq2seq(tmp_path, "bart", encoder_layers=1, decoder_layers=1)
    (tmp_path / "generation_config.json").unlink()
    if file == "config.json":
        edit_config(tmp_path, **{key: value})
    else:
        (tmp_path / file).write_text(json.dumps({"decoder_start_token_id": 2, key: value}))
    with pytest.raises(CheckpointError, match=message):
        load_decoder(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("bart", "activation_function", "mish"),
        ("bart", "encoder_attention_heads", 5),
        ("bart", "decoder_attention_heads", 5),
        ("bart", "decoder_layers", 0),
        ("bart", "scale_embedding", "yes"),
        ("bart", "is_encoder_decoder", False),
        ("bart", "tie_word_embeddings", 1),
        ("marian", "share_encoder_decoder_embeddings", None),
        ("marian", "decoder_vocab_size", -1),
        ("m2m_100", "pad_token_id", None),
        ("m2m_100", "pad_token_id", LONGEST + 1),
        ("mbart", "max_position_embeddings", 10**9),
        ("t5", "num_decoder_layers", 0),
        ("t5", "relative_attention_max_distance", 16),
        ("t5", "scale_decoder_outputs", "no"),
        ("umt5", "quantization_config", {"bits": 4}),
    ],
)
def test_an_option_that_changes_the_result_is_refused(tmp_path, model_type, key, value):
    tiny_seq2seq(tmp_path, model_type)
    edit_config(tmp_path, **{key: value})
    with pytest.raises(CheckpointError, match=f"^config.json: {key}: got .*, wanted .*; "):
        load_decoder(tmp_path)


def test_a_target_vocabulary_beside_shared_embeddings_is_refused(tmp_path):
    tiny_seq2seq(tmp_path, "marian")
    edit_config(tmp_path, share_encoder_decoder_embeddings=True)
    with pytest.raises(CheckpointError, match="decoder_vocab_size: got 77, wanted 131, as the"):
        load_decoder(tmp_path)


def sources_of(*lengths: int, pages: int = 2) -> SourceBatch:
    table = np.arange(len(lengths) * pages, dtype=np.int32).reshape(len(lengths), pages)
    return SourceBatch(
        input_ids=np.full(sum(lengths), 3, np.int64),
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
        block_table=table,
    )


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (sources_of(), "input_ids: got an empty source"),
        (sources_of(3, 0), "input_ids: got an empty source"),
        (
            sources_of(LONGEST + 1),
            f"got a source of {LONGEST + 1} tokens, wanted at most {LONGEST}",
        ),
        (
            dataclasses.replace(sources_of(2), input_ids=np.array([3, VOCABULARY])),
            f"input_ids: got {VOCABULARY}, wanted 0..{VOCABULARY - 1}",
        ),
        (
            dataclasses.replace(sources_of(2), input_ids=np.array([-1, 3])),
            "input_ids: got -1, wanted 0..",
        ),
    ],
    ids=["none", "empty", "long", "large", "negative"],
)
def test_a_source_out_of_range_never_reaches_a_kernel(tmp_path, sources, message):
    tiny_seq2seq(tmp_path, "bart", encoder_layers=1, decoder_layers=1)
    model = loaded(tmp_path)
    with pytest.raises(InvalidInput, match=message):
        model.encode(sources, model.new_cache(100, 4))


def test_pages_that_do_not_fit_a_source_are_refused(tmp_path):
    tiny_seq2seq(tmp_path, "bart", encoder_layers=1, decoder_layers=1)
    model = loaded(tmp_path)
    with pytest.raises(kernels.Error, match=r"context_lengths\[0\]: got 9, wanted 1 to 8"):
        model.encode(sources_of(9), model.new_cache(4, 4))
    with pytest.raises(kernels.Error, match="got page 3 in its table, wanted less than 3"):
        model.encode(sources_of(4, 7), model.new_cache(3, 4))


STEP = StepBatch(
    input_ids=np.array([3], np.int64),
    positions=np.array([0], np.int32),
    cu_seqlens=np.array([0, 1], np.int32),
    context_lengths=np.array([1], np.int32),
    block_table=np.array([[0]], np.int32),
    logit_rows=np.array([0], np.int64),
)
SOURCED = dataclasses.replace(
    STEP, sources=SourceTable(np.array([4], np.int32), np.array([[1]], np.int32))
)


def test_steps_have_sources_where_there_is_an_encoder_and_nowhere_else(tmp_path):
    tiny_seq2seq(tmp_path / "bart", "bart", encoder_layers=1, decoder_layers=1)
    model = loaded(tmp_path / "bart")
    with pytest.raises(InvalidInput, match="sources: got none, wanted one for each sequence"):
        model.step(STEP, model.new_cache(2, 4))
    tiny_decoder(tmp_path / "opt", "opt", num_hidden_layers=1)
    decoder = load_decoder(tmp_path / "opt")
    with pytest.raises(InvalidInput, match="sources: got some for a model without an encoder"):
        decoder.step(SOURCED, decoder.new_cache(2, 4))


def test_tables_of_sources_that_do_not_fit_are_refused(tmp_path):
    tiny_seq2seq(tmp_path, "bart", encoder_layers=1, decoder_layers=1)
    model = loaded(tmp_path)
    sources = SOURCED.sources
    for change, message in (
        ({"lengths": np.array([5], np.int32)}, "got 5, wanted 1 to 4, the positions"),
        ({"lengths": np.array([0], np.int32)}, "got 0, wanted 1 to 4"),
        ({"block_table": np.array([[2]], np.int32)}, "got page 2 in its table, wanted less than 2"),
        ({"block_table": np.array([[-1]], np.int32)}, "got -1, wanted a page"),
    ):
        step = dataclasses.replace(SOURCED, sources=dataclasses.replace(sources, **change))
        with pytest.raises(kernels.Error, match=message):
            model.step(step, model.new_cache(2, 4))


def test_the_cache_is_as_large_as_its_tokens_of_sources_and_targets(tmp_path):
    tiny_seq2seq(tmp_path, "t5")
    model = loaded(tmp_path)
    assert model.bytes_per_token == 2 * 2 * 4 * 20 * 4
    assert model.new_cache(5, 8).nbytes == 5 * 8 * model.bytes_per_token

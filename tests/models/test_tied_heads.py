"""Where a head's weight is tied to the embedding, both share memory if kernels read both in one
layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from fusewire.models import load_decoder
from fusewire.models.decoder import DecoderModel
from fusewire.placement import BYTES, Placement

from tests.held import held
from tests.models.paged_texts import logits_in_pieces
from tests.models.test_model_refusals import edit_weights
from tests.models.tiny_decoders import (
    VOCABULARY,
    random_ids,
    tiny_decoder,
    transformers_logits,
)
from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.places import CPU, GPU
from tests.tolerance import MODEL_FP32

HIDDEN = 48


def loaded(folder: Path, place: Placement, tied: bool) -> tuple[DecoderModel, int]:
    """Returns a model and the bytes that it allocates."""
    folder.mkdir()
    tiny_decoder(folder, "llama", tie_word_embeddings=tied)
    return held(lambda: load_decoder(folder, place), place.device)


@pytest.mark.parametrize("place", [CPU, *GPU], indirect=True)
def test_the_head_is_made_of_the_tensor_that_embeds(tmp_path, place: Placement, monkeypatch):
    linear_of, tables = Placement.linear_of, []
    monkeypatch.setattr(
        Placement, "linear_of", lambda *given: tables.append(given[1]) or linear_of(*given)
    )
    model, _ = loaded(tmp_path / "tied", place, tied=True)
    assert tables == [model._stack.input_block._word]
    loaded(tmp_path / "untied", place, tied=False)
    assert len(tables) == 1


@pytest.mark.parametrize("place", [CPU, *GPU], indirect=True)
def test_a_gpu_holds_a_tied_weight_once(tmp_path, place: Placement):
    tied, tied_bytes = loaded(tmp_path / "tied", place, tied=True)
    untied, untied_bytes = loaded(tmp_path / "untied", place, tied=False)
    del tied, untied
    once = VOCABULARY * HIDDEN * BYTES[place.dtype] if place.device != "cpu" else 0
    assert untied_bytes - tied_bytes >= once  # the CPU's panels are not rows (cpu/gemm.cc)


@pytest.mark.parametrize("other", [1.0, -1.0], ids=["the same", "another"])
@pytest.mark.parametrize(
    ("model_type", "word"),
    [
        ("gpt2", "transformer.wte.weight"),
        ("opt", "model.decoder.embed_tokens.weight"),
        ("qwen2", "model.embed_tokens.weight"),
    ],
)
def test_a_head_that_is_stored_beside_the_embedding_is_the_head(tmp_path, model_type, word, other):
    tiny_decoder(tmp_path, model_type, tie_word_embeddings=True)
    edit_weights(
        tmp_path, lambda tensors: tensors.update({"lm_head.weight": other * tensors[word]})
    )
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    prompts = random_ids((5, 9))
    ours = logits_in_pieces(load_decoder(tmp_path), prompts, None)
    for got, wanted in zip(ours, transformers_logits(reference, prompts), strict=True):
        np.testing.assert_allclose(got, wanted, atol=MODEL_FP32, rtol=0)


@pytest.mark.parametrize("place", [CPU, *GPU], indirect=True)
def test_both_embeddings_and_the_head_of_an_encoder_decoder_are_one_tensor(
    tmp_path, place: Placement, monkeypatch
):
    linear_of, given = Placement.linear_of, []
    monkeypatch.setattr(
        Placement, "linear_of", lambda *those: given.append(those[1:3]) or linear_of(*those)
    )
    tiny_seq2seq(tmp_path, "bart")
    model = load_decoder(tmp_path, place)
    words = model._encoder.input_block._word
    assert model._stack.input_block._word is words
    [(table, bias)] = given
    assert table is words
    assert bias.shape == (VOCABULARY,)

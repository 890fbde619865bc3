"""Every encoder-decoder model gives the logits and the greedy tokens of transformers, however its
targets are split into steps and wherever pages of targets and sources are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fusewire.models import Seq2SeqModel, load_decoder
from fusewire.models.registry import SEQ2SEQ
from fusewire.parity import parity
from fusewire.placement import Placement

from tests.models.paged_texts import PagedTexts, greedy, logits_in_pieces
from tests.models.tiny_seq2seq import (
    VOCABULARY,
    random_texts,
    teacher_forced_logits,
    tiny_seq2seq,
)
from tests.places import CPU, GPU_FP32, on_gpu
from tests.tolerance import BATCHED_VERSUS_ALONE, GPU_BATCHED_VERSUS_ALONE, MODEL_FP32

pytestmark = pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)

# Sources are shorter and longer than their targets, and than a page.
SOURCES = (1, 30, 9, 3, 66)
TARGETS = (14, 9, 33, 1, 5)


def loaded(folder: Any, place: Placement) -> Seq2SeqModel:
    model = load_decoder(folder, place)
    assert isinstance(model, Seq2SeqModel)
    return model


def difference(reference: Any, model: Seq2SeqModel, most: int | None) -> float:
    """Returns the largest difference between our logits, in pieces of up to `most` tokens, and
    transformers'."""
    sources = random_texts(model.source_vocab_size, SOURCES)
    targets = random_texts(model.vocab_size, TARGETS, seed=1)
    ours = logits_in_pieces(model, targets, most, sources=sources)
    worst = 0.0
    for got, wanted in zip(ours, teacher_forced_logits(reference, sources, targets), strict=True):
        assert got.shape == wanted.shape
        assert np.isfinite(got).all()
        assert np.ptp(wanted) > 1  # equal logits would prove nothing
        worst = max(worst, float(np.abs(got - wanted).max()))
    return worst


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("bart", {"scale_embedding": True, "activation_function": "relu"}),
    ("bart", {"tie_word_embeddings": False}),
    ("bart", {"encoder_layers": 1, "decoder_layers": 4}),
    ("bart", {"encoder_attention_heads": 3, "decoder_attention_heads": 6, "d_model": 66}),
    ("mbart", {"scale_embedding": False, "activation_function": "silu"}),
    ("marian", {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": None}),
    ("marian", {"tie_word_embeddings": False}),
    ("marian", {"d_model": 45, "decoder_attention_heads": 5, "encoder_attention_heads": 3}),
    ("m2m_100", {"d_model": 45, "decoder_attention_heads": 5, "encoder_attention_heads": 3}),
    ("m2m_100", {"pad_token_id": 0, "scale_embedding": False}),
    ("pegasus", {"activation_function": "relu", "scale_embedding": False}),
    ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("t5", {"num_heads": 1, "d_kv": 64, "num_decoder_layers": 5}),
    ("t5", {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 20}),
    ("umt5", {"num_heads": 3, "d_kv": 2, "d_model": 6, "num_layers": 1}),
    ("mt5", {"layer_norm_epsilon": 0.1, "num_decoder_layers": None}),
]


@pytest.mark.parametrize("most", [None, 1, 7], ids=["whole", "tokens", "pieces"])
@pytest.mark.parametrize("model_type", SEQ2SEQ)
def test_logits_equal_transformers(tmp_path, model_type, most, place: Placement):
    reference = tiny_seq2seq(tmp_path, model_type).to(place.device)
    assert difference(reference, loaded(tmp_path, place), most) <= MODEL_FP32


@pytest.mark.parametrize(("model_type", "sizes"), VARIANTS, ids=str)
def test_options_and_odd_sizes(tmp_path, model_type, sizes, place: Placement):
    reference = tiny_seq2seq(tmp_path, model_type, **sizes).to(place.device)
    assert difference(reference, loaded(tmp_path, place), 7) <= MODEL_FP32


@pytest.mark.parametrize("model_type", ["t5", "umt5"])
def test_distances_beyond_the_last_bucket(tmp_path, model_type, place: Placement):
    reference = tiny_seq2seq(tmp_path, model_type).to(place.device)
    model = loaded(tmp_path, place)
    sources, targets = (random_texts(VOCABULARY, [300], seed) for seed in (0, 1))
    [got] = logits_in_pieces(model, targets, 90, sources=sources)
    [wanted] = teacher_forced_logits(reference, sources, targets)
    assert np.abs(got - wanted).max() <= MODEL_FP32


@pytest.mark.parametrize("model_type", SEQ2SEQ)
def test_greedy_tokens_equal_generate(tmp_path, model_type, place: Placement):
    reference = tiny_seq2seq(tmp_path, model_type).to(place.device)
    model = loaded(tmp_path, place)
    sources = random_texts(model.source_vocab_size, SOURCES)
    start = [[model.decoder_start_token_id]] * len(sources)
    ours = greedy(model, start, 20, sources=sources)
    for source, got in zip(sources, ours, strict=True):
        inputs = torch.tensor([source], device=place.device)
        wanted = reference.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            num_beams=1,
            do_sample=False,
            max_new_tokens=20,
            forced_eos_token_id=None,
        )
        assert wanted[0, 0] == model.decoder_start_token_id
        assert got == wanted[0, 1:].tolist()


@pytest.mark.parametrize("model_type", SEQ2SEQ)
def test_an_answer_is_the_same_alone_and_beside_others(tmp_path, model_type, place: Placement):
    tiny_seq2seq(tmp_path, model_type)
    model = loaded(tmp_path, place)
    sources = random_texts(model.source_vocab_size, SOURCES)
    targets = random_texts(model.vocab_size, TARGETS, seed=1)
    together = logits_in_pieces(model, targets, 7, sources=sources)
    allowed = GPU_BATCHED_VERSUS_ALONE if on_gpu(place) else BATCHED_VERSUS_ALONE
    for source, target, wanted in zip(sources, targets, together, strict=True):
        [got] = logits_in_pieces(model, [target], None, seed=3, sources=[source])
        assert np.abs(got - wanted).max() <= allowed * max(1.0, np.abs(wanted).max())


def test_padding_in_a_source_has_no_position(tmp_path, place: Placement):
    reference = tiny_seq2seq(tmp_path, "m2m_100").to(place.device)
    model = loaded(tmp_path, place)
    sources = [[5, 1, 7, 1, 1, 9], [1, 4], [1]]
    targets = random_texts(VOCABULARY, [4, 4, 4], seed=1)
    ours = logits_in_pieces(model, targets, None, sources=sources)
    for got, wanted in zip(ours, teacher_forced_logits(reference, sources, targets), strict=True):
        assert np.abs(got - wanted).max() <= MODEL_FP32


def test_sequences_may_share_a_source(tmp_path, place: Placement):
    reference = tiny_seq2seq(tmp_path, "bart").to(place.device)
    model = loaded(tmp_path, place)
    sources = random_texts(VOCABULARY, [9, 30])
    targets = random_texts(VOCABULARY, [3, 8, 5], seed=1)
    texts = PagedTexts(model, 3, sources=sources)
    texts.source_lengths, texts.source_pages = (
        [each[of] for of in (0, 1, 1)] for each in (texts.source_lengths, texts.source_pages)
    )
    got = texts.step(list(enumerate(targets)))
    wanted = teacher_forced_logits(reference, [sources[of] for of in (0, 1, 1)], targets)
    for one, other in zip(got, wanted, strict=True):
        assert np.abs(one - other).max() <= MODEL_FP32


def test_sources_may_be_encoded_while_others_are_read(tmp_path, place: Placement):
    """The pages of a source are neither another source's nor a target's."""
    tiny_seq2seq(tmp_path, "t5")
    model = loaded(tmp_path, place)
    sources = random_texts(VOCABULARY, [9, 30])
    [target] = random_texts(VOCABULARY, [6], seed=1)
    wanted = logits_in_pieces(model, [target], None, sources=sources[:1])[0]
    texts = PagedTexts(model, 2, sources=sources)
    got = [texts.step([(0, target[:3])])[0]]
    pages, texts.source_pages[0] = texts.source_pages[0], texts.source_pages[1]
    lengths, texts.source_lengths[0] = texts.source_lengths[0], texts.source_lengths[1]
    texts.encode([sources[1], sources[1]])  # both into the pages of the second
    texts.source_pages[0], texts.source_lengths[0] = pages, lengths
    got.append(texts.step([(0, target[3:])])[0])
    np.testing.assert_allclose(np.concatenate(got), wanted, rtol=0, atol=MODEL_FP32)


@pytest.mark.parametrize("model_type", SEQ2SEQ)
def test_check_compares_logits_and_greedy_tokens(tmp_path, model_type, place: Placement):
    tiny_seq2seq(tmp_path, model_type)
    measured = parity(tmp_path, device=place.device, dtype=place.dtype, sequences=4)
    assert measured.task == "generate"
    assert measured.architecture == SEQ2SEQ[model_type].causal_class
    assert measured.greedy_equal == measured.greedy_tokens == 4 * 16
    assert measured.passed, measured

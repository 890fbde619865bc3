"""Every decoder gives the logits and the greedy tokens of transformers, however its tokens are
split into steps and wherever its pages are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fusewire.models import load_decoder
from fusewire.models.registry import DECODERS
from fusewire.placement import Placement

from tests.models.paged_texts import PagedTexts, greedy, logits_in_pieces
from tests.models.test_rope import long_and_short
from tests.models.tiny_decoders import (
    LONGEST,
    WINDOW,
    random_ids,
    tiny_decoder,
    transformers_greedy,
    transformers_logits,
)
from tests.places import CPU, GPU_FP32
from tests.tolerance import MODEL_FP32

pytestmark = pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)

LENGTHS = (1, 9, 33, 4, 18)  # some are longer than windows, most are longer than pages

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
LONGROPE = {"rope_type": "longrope", **long_and_short(6)}

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {"tie_word_embeddings": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"scale_attn_weights": False, "intermediate_size": None}),
    ("gpt2", {"activation_function": "relu", "num_attention_heads": 3}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("gpt_neox", {"attention_bias": False, "tie_word_embeddings": True}),
    ("gpt_neox", {"rotary_pct": 1.0, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    ("gpt_neox", {"rotary_pct": 0.25, "hidden_act": "gelu_new"}),
    ("gpt_neox", {"is_decoder": True}),
    ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 20}),
    ("opt", {"do_layer_norm_before": False, "tie_word_embeddings": False}),
    ("opt", {"enable_bias": False, "word_embed_proj_dim": 20}),
    ("opt", {"_remove_final_layer_norm": True, "activation_function": "gelu"}),
    ("llama", {"num_key_value_heads": 4}),
    ("llama", {"num_key_value_heads": 1, "head_dim": 20}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"tie_word_embeddings": True, "hidden_act": "gelu"}),
    ("llama", {"hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1}),
    ("llama", {"hidden_size": 66, "num_attention_heads": 3, "num_key_value_heads": 3}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}),
    ("llama", {"rope_parameters": YARN | {"rope_theta": 500.0}}),
    ("llama", {"rope_parameters": LLAMA3 | {"rope_theta": 500.0}}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 1}),
    ("mistral", {"head_dim": 10, "num_key_value_heads": 1}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    ("qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    ("gemma2", {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}),
    ("gemma2", {"attention_bias": True, "tie_word_embeddings": False}),
    ("gemma3_text", {"num_hidden_layers": 7, "sliding_window_pattern": 6}),
    ("gemma3_text", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("gemma3_text", {"final_logit_softcapping": 12.0}),
    ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": LONGEST // 2}),
    ("phi3", {"partial_rotary_factor": 0.5}),
    ("phi3", {"sliding_window": WINDOW, "tie_word_embeddings": True}),
]


def difference(
    reference: Any, model: Any, lengths: Any = LENGTHS, most: int | None = None
) -> float:
    """Returns the largest difference between our logits, in pieces of up to `most` tokens, and
    transformers'."""
    sequences = random_ids(lengths)
    ours = logits_in_pieces(model, sequences, most)
    worst = 0.0
    for got, wanted in zip(ours, transformers_logits(reference, sequences), strict=True):
        assert got.shape == wanted.shape
        assert np.isfinite(got).all()
        assert np.ptp(wanted) > 1  # equal logits would prove nothing
        worst = max(worst, float(np.abs(got - wanted).max()))
    return worst


@pytest.mark.parametrize("most", [None, 12, 1], ids=["whole", "chunks", "tokens"])
@pytest.mark.parametrize("model_type", DECODERS)
def test_logits_equal_transformers(tmp_path, place: Placement, model_type, most):
    reference = tiny_decoder(tmp_path, model_type).to(place.device)
    model = load_decoder(tmp_path, place)
    assert difference(reference, model, most=most) <= MODEL_FP32


@pytest.mark.parametrize(("model_type", "sizes"), VARIANTS, ids=str)
def test_variants_equal_transformers(tmp_path, place: Placement, model_type, sizes):
    reference = tiny_decoder(tmp_path, model_type, **sizes).to(place.device)
    model = load_decoder(tmp_path, place)
    for most in (None, 5):
        assert difference(reference, model, most=most) <= MODEL_FP32


@pytest.mark.parametrize("model_type", DECODERS)
def test_the_longest_sequence(tmp_path, place: Placement, model_type):
    reference = tiny_decoder(tmp_path, model_type).to(place.device)
    model = load_decoder(tmp_path, place)
    assert model.max_length == LONGEST
    assert difference(reference, model, (LONGEST, 1, LONGEST - 1), most=40) <= MODEL_FP32


@pytest.mark.parametrize("model_type", DECODERS)
def test_greedy_tokens_equal_generate(tmp_path, place: Placement, model_type):
    reference = tiny_decoder(tmp_path, model_type).to(place.device)
    model = load_decoder(tmp_path, place)
    prompts = random_ids(LENGTHS, seed=1)
    assert greedy(model, prompts, 24) == transformers_greedy(reference, prompts, 24)


def test_shards_are_one_checkpoint(tmp_path, place: Placement):
    reference = tiny_decoder(tmp_path, "llama", shard="40KB").to(place.device)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert difference(reference, load_decoder(tmp_path, place)) <= MODEL_FP32


def test_where_pages_lie_changes_nothing(tmp_path, place: Placement):
    tiny_decoder(tmp_path, "gemma2")
    model = load_decoder(tmp_path, place)
    prompts = random_ids((21, 5))
    one, other = (PagedTexts(model, 2, seed=seed).step(list(enumerate(prompts))) for seed in (0, 1))
    for here, there in zip(one, other, strict=True):
        np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("page_size", [1, 2, 16, 64])
def test_pages_of_any_size(tmp_path, place: Placement, page_size):
    reference = tiny_decoder(tmp_path, "mistral").to(place.device)
    texts = PagedTexts(load_decoder(tmp_path, place), 2, page_size)
    prompts = random_ids((37, 3))
    texts.step([(0, prompts[0][:20]), (1, prompts[1][:1])])
    ours = texts.step([(1, prompts[1][1:]), (0, prompts[0][20:])])
    theirs = transformers_logits(reference, prompts)
    np.testing.assert_allclose(ours[1], theirs[0][20:], atol=MODEL_FP32, rtol=0)
    np.testing.assert_allclose(ours[0], theirs[1][1:], atol=MODEL_FP32, rtol=0)


def test_a_text_goes_on_in_two_ways_from_shared_pages(tmp_path, place: Placement):
    reference = tiny_decoder(tmp_path, "qwen3").to(place.device)
    texts = PagedTexts(load_decoder(tmp_path, place), 2)
    prompt, (one, other) = random_ids((11,))[0], random_ids((6, 6), seed=2)
    texts.step([(0, prompt)])
    full, begun = texts.pages[0][:2], texts.pages[0][2]  # 4, 4 and 3 tokens
    texts.pages[1] = [*full, texts.take_page()]
    texts.lengths[1] = texts.lengths[0]
    texts.cache.copy_pages([begun], [texts.pages[1][2]])
    ours = texts.step([(0, one), (1, other)])
    theirs = transformers_logits(reference, [prompt + one, prompt + other])
    for got, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, wanted[11:], atol=MODEL_FP32, rtol=0)


def test_only_wanted_rows_have_logits(tmp_path, place: Placement):
    tiny_decoder(tmp_path, "opt", word_embed_proj_dim=20)
    model = load_decoder(tmp_path, place)
    prompts = list(enumerate(random_ids((7, 3))))
    every = PagedTexts(model, 2).step(prompts)
    last = PagedTexts(model, 2).step(prompts, last=True)
    for whole, row in zip(every, last, strict=True):
        np.testing.assert_allclose(row, whole[-1], atol=MODEL_FP32, rtol=0)

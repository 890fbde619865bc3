"""On a GPU, captured steps of encoder-decoder models give the logits of eager ones, and in 16 bits
they are as close to transformers in fp32 as transformers itself is."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.errors import ConfigurationError
from fusewire.models import Seq2SeqModel, load_decoder, step_replay
from fusewire.models.registry import SEQ2SEQ
from fusewire.placement import Placement

from tests.models.paged_texts import Logits, PagedTexts, logits_in_pieces
from tests.models.tiny_seq2seq import (
    LONGEST,
    random_texts,
    teacher_forced_logits,
    tiny_seq2seq,
)
from tests.places import GPU, GPU_FP32, GPU_HALVES, TORCH_DTYPES, on_gpu
from tests.tolerance import GPU_BATCHED_VERSUS_ALONE, allowed_error

SEQUENCES = 12
EVERY_ONE = pytest.mark.parametrize("model_type", SEQ2SEQ)


def loaded(folder, place: Placement, model_type: str) -> Seq2SeqModel:
    if place.dtype == "float16" and "t5" in model_type:
        pytest.skip("its hidden states overflow float16, which is refused")
    model = load_decoder(folder, place)
    assert isinstance(model, Seq2SeqModel)
    return model


def sources_of(model: Seq2SeqModel) -> list[list[int]]:
    return random_texts(model.source_vocab_size, range(1, 8 * SEQUENCES, 8))


def texts_of(model: Seq2SeqModel) -> PagedTexts:
    return PagedTexts(model, SEQUENCES, sources=sources_of(model))


def some_steps(texts: PagedTexts, seed: int = 0) -> list[list[Logits]]:
    """Runs prompts, then single tokens of random choices of sequences."""
    rng = np.random.default_rng(seed)

    def ids(count: int) -> list[int]:
        return rng.integers(0, texts.model.vocab_size, count).tolist()

    answers = [texts.step([(i, ids(1 + i)) for i in range(SEQUENCES)])]
    while max(texts.lengths) < 60:
        some = rng.permutation(SEQUENCES)[: rng.integers(1, SEQUENCES + 1)]
        answers.append(texts.step([(i, ids(1)) for i in some.tolist()]))
    return answers


@pytest.mark.parametrize("place", GPU, indirect=True)
@EVERY_ONE
def test_recorded_steps_are_the_eager_ones(tmp_path, model_type, place, monkeypatch):
    # So that texts and sources exceed them.
    monkeypatch.setattr(step_replay, "SHORT_PAGES", 1)
    monkeypatch.setattr(step_replay, "LEAST_PAGES", 2)
    tiny_seq2seq(tmp_path, model_type)
    model = loaded(tmp_path, place, model_type)
    eager = some_steps(texts_of(model))
    texts = texts_of(model)
    # Capture writes into the pages.
    model.record_steps(texts.cache, max_sequences=10, max_tokens=LONGEST)
    assert model._replays is not None
    texts.encode(sources_of(model))
    # In 16 bits the kernels are the same, because GEMM kernels are selected for the same number of
    # rows.
    allowed = GPU_BATCHED_VERSUS_ALONE if place.dtype == "float32" else 0
    for one, other in zip(some_steps(texts), eager, strict=True):
        for got, wanted in zip(one, other, strict=True):
            assert np.abs(got - wanted).max() <= allowed * np.abs(wanted).max()
    assert model._replays.hits > 0
    assert len({bucket.source_pages for bucket in model._replays.recorded}) > 1


@pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
@pytest.mark.parametrize("most", [None, 1], ids=["whole", "tokens"])
@EVERY_ONE
def test_logits_are_as_right_as_those_of_transformers(tmp_path, place, model_type, most):
    reference = tiny_seq2seq(tmp_path, model_type).to(place.device)
    model = loaded(tmp_path, place, model_type)
    sources = random_texts(model.source_vocab_size, (30, 1, 9, 64))
    targets = random_texts(model.vocab_size, (1, 9, 33, 64), seed=1)
    truth = np.concatenate(teacher_forced_logits(reference, sources, targets)).astype(np.float64)
    reference = reference.to(TORCH_DTYPES[place.dtype])
    rounded = np.concatenate(teacher_forced_logits(reference, sources, targets))
    ours = np.concatenate(logits_in_pieces(model, targets, most, sources=sources))
    assert not allowed_error(truth, rounded, place.dtype, LONGEST).excess(ours)


@pytest.mark.parametrize("place", GPU_HALVES[:1], indirect=True)
def test_float16_is_refused_where_it_overflows(tmp_path, place: Placement):
    tiny_seq2seq(tmp_path, "t5")
    assert on_gpu(place)
    with pytest.raises(ConfigurationError, match=r"^dtype: got float16 .* wanted bfloat16"):
        load_decoder(tmp_path, place)
    assert load_decoder(tmp_path, Placement(place.device)).place.dtype == "bfloat16"


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
def test_encoding_before_recorded_steps_moves_no_arena(tmp_path, place: Placement):
    tiny_seq2seq(tmp_path, "bart")
    model = loaded(tmp_path, place, "bart")
    texts = texts_of(model)
    model.record_steps(texts.cache, max_sequences=4, max_tokens=sum(texts.source_lengths))
    assert model._replays is not None
    recordings = len(model._replays.recorded)
    texts.encode(sources_of(model))
    texts.step([(i, [4]) for i in range(4)])
    assert (model._replays.hits, model._replays.misses) == (1, 0)
    assert len(model._replays.recorded) == recordings

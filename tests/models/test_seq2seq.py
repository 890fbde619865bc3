"""Every encoder-decoder model gives the logits and the greedy tokens of transformers, however its
targets are cut into steps and wherever pages of targets and sources lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fusewire.models import Seq2SeqModel, load_decoder
from fusewire.models.registry import SEQ2SEQ
from fusewire.parity import parity
from fusewire.placement import Placement

from tests.models.paged_texts import logits_in_pieces
from tests.models.tiny_seq2seq import random_texts, teacher_forced_logits, tiny_seq2seq
from tests.places import CPU, GPU_FP32
from tests.tolerance import MODEL_FP32

pytestmark = pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)

# Sources are shorter and longer than their targets, and than a page.
SOURCES = (1, 30, 9, 3, 66)
TARGETS = (14, 9, 33, 1, 5)


def loaded(folder: Any, place: Placement) -> Seq2SeqModel:
    model = load_decoder(folder, place)
    assert isinstance(model, Seq2SeqModel)
    return model


def difference(reference: Any, model: Seq2SeqModel, most: int | None) -> float:
    """The largest between our logits, in pieces of up to `most` tokens, and transformers'."""
    sources = random_texts(model.source_vocab_size, SOURCES)
    targets = random_texts(model.vocab_size, TARGETS, seed=1)
    ours = logits_in_pieces(model, targets, most, sources=sources)
    worst = 0.0
    for got, wanted in zip(ours, teacher_forced_logits(reference, sources, targets), strict=True):
        assert got.shape == wanted.shape
        assert np.isfinite(got).all()
        assert np.ptp(wanted) > 1  # a model that says nothing proves nothing
        worst = max(worst, float(np.abs(got - wanted).max()))
    return worst


@pytest.mark.parametrize("most", [None, 1, 7], ids=["whole", "tokens", "pieces"])
@pytest.mark.parametrize("model_type", SEQ2SEQ)
def test_logits_equal_transformers(tmp_path, model_type, most, place: Placement):
    reference = tiny_seq2seq(tmp_path, model_type).to(place.device)
    assert difference(reference, loaded(tmp_path, place), most) <= MODEL_FP32


@pytest.mark.parametrize("model_type", SEQ2SEQ)
def test_check_compares_logits_and_greedy_tokens(tmp_path, model_type, place: Placement):
    tiny_seq2seq(tmp_path, model_type)
    measured = parity(tmp_path, device=place.device, dtype=place.dtype, sequences=4)
    assert measured.task == "generate"
    assert measured.architecture == SEQ2SEQ[model_type].causal_class
    assert measured.greedy_equal == measured.greedy_tokens == 4 * 16
    assert measured.passed, measured

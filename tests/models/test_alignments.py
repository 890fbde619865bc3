"""The attention of a decoder's last layer to its source equals transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.errors import InvalidInput
from fusewire.models import load_decoder
from fusewire.placement import Placement

from tests.models.tiny_seq2seq import SEQ2SEQ, random_texts, tiny_seq2seq
from tests.places import CPU, GPU_FP32
from tests.tolerance import PIPELINE_SCORE

WORDS = 77  # token ids that every model has, as source and target


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("model_type", SEQ2SEQ)
def test_alignments_are_transformers_cross_attentions(tmp_path, model_type, place):
    reference = tiny_seq2seq(tmp_path, model_type)
    reference.set_attn_implementation("eager")
    model = load_decoder(tmp_path, Placement(place.device, place.dtype))
    (source,) = random_texts(WORDS, [37], seed=1)
    targets = random_texts(WORDS, [1, 19, 16, 33], seed=2)
    found = model.alignments(source, targets)
    spread = 0.0
    for target, weights in zip(targets, found, strict=True):
        with torch.no_grad():
            out = reference(
                input_ids=torch.tensor([source]),
                decoder_input_ids=torch.tensor([target]),
                output_attentions=True,
            )
        wanted = out.cross_attentions[-1][0].mean(0).numpy()
        assert weights.shape == (len(target), len(source))
        np.testing.assert_allclose(weights, wanted, 0, PIPELINE_SCORE)
        np.testing.assert_allclose(weights.sum(-1), 1, 0, PIPELINE_SCORE)
        spread = max(spread, float(np.abs(wanted - 1 / len(source)).max()))
    assert spread > 0.01  # otherwise any weights would pass


@pytest.mark.parametrize(
    ("max_batch_tokens", "passes"),
    [(69, [69]), (68, [36, 33]), (20, [20, 16, 33]), (1, [1, 19, 16, 33])],
)
def test_a_pass_has_no_more_tokens_than_a_step(tmp_path, monkeypatch, max_batch_tokens, passes):
    tiny_seq2seq(tmp_path, "bart")
    model = load_decoder(tmp_path, Placement("cpu", "float32"))
    (source,) = random_texts(WORDS, [37], seed=1)
    targets = random_texts(WORDS, [1, 19, 16, 33], seed=2)
    wanted = model.alignments(source, targets)
    sizes, queries = [], model._stack.source_queries

    def counted(x, *rest):
        sizes.append(x.shape[0])
        return queries(x, *rest)

    monkeypatch.setattr(model._stack, "source_queries", counted)
    found = model.alignments(source, targets, max_batch_tokens)
    assert sizes == passes
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, 0, PIPELINE_SCORE)


def test_a_source_that_the_model_does_not_know_is_refused(tmp_path):
    tiny_seq2seq(tmp_path, "bart")
    model = load_decoder(tmp_path, Placement("cpu", "float32"))
    with pytest.raises(InvalidInput, match="input_ids"):
        model.alignments([10_000], [[5]])
    with pytest.raises(InvalidInput, match="input_ids"):
        model.alignments([5], [[10_000]])

"""What `fusewire check` measures of a model that generates."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from fusewire import parity as module
from fusewire.models import load_decoder
from fusewire.models.registry import DECODERS
from fusewire.parity import parity

from tests.models.tiny_decoders import LONGEST, tiny_decoder
from tests.tolerance import MODEL_FP32


@pytest.mark.parametrize("model_type", DECODERS)
def test_logits_and_greedy_tokens_of_a_decoder_are_compared(tmp_path, model_type):
    tiny_decoder(tmp_path, model_type)
    measured = parity(tmp_path, sequences=5)
    assert measured.architecture == DECODERS[model_type].causal_class
    assert measured.task == "generate"
    assert measured.tokens >= LONGEST - 16 + 1  # the longest prompt leaves room for 16 more
    assert measured.differences.keys() == {"logits"}
    assert 0 < measured.largest <= MODEL_FP32
    assert measured.greedy_equal == measured.greedy_tokens == 5 * 16


def test_another_weight_is_seen_in_logits_and_tokens(tmp_path, monkeypatch):
    reference = tiny_decoder(tmp_path / "theirs", "llama")
    with torch.no_grad():
        reference.model.layers[1].mlp.down_proj.weight[3] += 1
    reference.save_pretrained(tmp_path / "ours")
    monkeypatch.setattr(module, "load_decoder", partial(_instead, tmp_path / "ours"))
    measured = parity(tmp_path / "theirs")
    assert measured.largest > 100 * MODEL_FP32
    assert measured.greedy_equal < measured.greedy_tokens


def test_a_nan_of_a_decoder_is_not_hidden(tmp_path):
    reference = tiny_decoder(tmp_path, "gpt2")
    with torch.no_grad():
        reference.transformer.h[1].mlp.c_proj.bias[3] = torch.nan
    reference.save_pretrained(tmp_path)
    measured = parity(tmp_path)
    assert not measured.largest <= MODEL_FP32
    assert measured.greedy_equal == 0


def test_the_shortest_model_is_compared(tmp_path):
    tiny_decoder(tmp_path, "gpt2", max_position_embeddings=4)
    measured = parity(tmp_path, sequences=2)
    assert measured.tokens == 2  # one each, three more are written
    assert measured.greedy_equal == measured.greedy_tokens == 2 * 3


def _instead(folder, asked, place):
    return load_decoder(folder, place)

"""What `fusewire check` measures of a model that generates."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fusewire import load
from fusewire.models import load_decoder
from fusewire.models.registry import DECODERS
from fusewire.parity import decoders, parity
from fusewire.placement import Placement

from tests.engine.generating import tiny_folder
from tests.models.tiny_decoders import LONGEST, tiny_decoder
from tests.places import GPU_HALVES, TORCH_DTYPES
from tests.reference import edit_config, tiny_checkpoint
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
    assert measured.passed
    assert measured.greedy_equal == measured.greedy_tokens == 5 * 16


def test_another_weight_is_seen_in_logits_and_tokens(tmp_path, monkeypatch):
    reference = tiny_decoder(tmp_path / "theirs", "llama")
    with torch.no_grad():
        reference.model.layers[1].mlp.down_proj.weight[3] += 1
    reference.save_pretrained(tmp_path / "ours")
    monkeypatch.setattr(decoders, "load_decoder", partial(_instead, tmp_path / "ours"))
    measured = parity(tmp_path / "theirs")
    assert measured.largest > 100 * MODEL_FP32
    assert not measured.passed
    assert measured.greedy_equal < measured.greedy_tokens


def test_a_nan_of_a_decoder_is_not_hidden(tmp_path):
    reference = tiny_decoder(tmp_path, "gpt2")
    with torch.no_grad():
        reference.transformer.h[1].mlp.c_proj.bias[3] = torch.nan
    reference.save_pretrained(tmp_path)
    measured = parity(tmp_path)
    assert not measured.passed
    assert measured.greedy_equal == 0


def test_the_shortest_model_is_compared(tmp_path):
    tiny_decoder(tmp_path, "gpt2", max_position_embeddings=4)
    measured = parity(tmp_path, sequences=2)
    assert measured.tokens == 2  # one each, three more are written
    assert measured.greedy_equal == measured.greedy_tokens == 2 * 3


def with_large_logits(folder: Path, model_type: str = "llama", **sizes: Any) -> Any:
    """30 times those of a tiny decoder."""
    reference = tiny_decoder(folder, model_type, **sizes)
    with torch.no_grad():
        reference.lm_head.weight *= 30
    reference.save_pretrained(folder)
    return reference


def test_large_logits_may_differ_by_their_own_rounding(tmp_path):
    with_large_logits(tmp_path)
    measured = parity(tmp_path)
    assert measured.allowed["logits"] > MODEL_FP32
    assert measured.passed
    assert measured.greedy_equal == measured.greedy_tokens


class InHalf:
    """transformers in 16 bits in the place of our model, off by some share of every logit."""

    def __init__(self, folder: Path, dtype: str, share: float) -> None:
        self._exact = load_decoder(folder, Placement("cpu", "float32"))
        precision = SimpleNamespace(stores_exactly=True)
        self.place = SimpleNamespace(
            dtype=dtype, described=dtype, precision=precision, numpy=lambda logits: logits
        )
        self.max_length, self.vocab_size = self._exact.max_length, self._exact.vocab_size
        self.new_cache = self._exact.new_cache
        self._share = share

    def step(self, batch: Any, cache: Any) -> Any:
        exact = torch.from_numpy(self._exact.place.numpy(self._exact.step(batch, cache)).copy())
        return ((1 + self._share) * exact).to(TORCH_DTYPES[self.place.dtype]).float().numpy()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_16_bits_large_logits_are_allowed_what_transformers_needs(tmp_path, monkeypatch, dtype):
    with_large_logits(tmp_path)
    for share, passes in ((0.0, True), (0.3, False)):
        ours = InHalf(tmp_path, dtype, share)
        monkeypatch.setattr(decoders, "load_decoder", lambda folder, place, ours=ours: ours)
        measured = parity(tmp_path)
        assert measured.dtype == dtype
        assert measured.passed == passes


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_16_bits_given_texts_are_allowed_what_transformers_needs(tmp_path, monkeypatch, dtype):
    tiny_folder(tmp_path)
    (tmp_path / "texts").write_text("Water boils.\nIce melts at zero.\n")
    for share, passes in ((0.0, True), (0.3, False)):
        ours = InHalf(tmp_path, dtype, share)
        monkeypatch.setattr(decoders, "load_decoder", lambda folder, place, ours=ours: ours)
        measured = parity(tmp_path, texts=tmp_path / "texts")
        assert measured.dtype == dtype
        assert measured.allowed["logits"] > 0
        assert measured.passed == passes


@pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
@pytest.mark.parametrize("large", [False, True])
def test_in_16_bits_a_decoder_passes(tmp_path, place, large):
    (with_large_logits if large else tiny_decoder)(tmp_path, "llama")
    measured = parity(tmp_path, device=place.device, dtype=place.dtype)
    assert measured.dtype == place.dtype
    assert measured.passed, measured


def _instead(folder, asked, place):
    return load_decoder(folder, place)


def test_code_of_a_folder_is_never_run(tmp_path):
    tiny_checkpoint(tmp_path / "model", "bert")
    edit_config(tmp_path / "model", auto_map={"AutoConfig": "own.C", "AutoModel": "own.M"})
    (tmp_path / "model" / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert load(tmp_path / "model").task == "embed"
    assert parity(tmp_path / "model", sequences=2).passed
    assert not (tmp_path / "ran").exists()

"""Whisper gives the logits of transformers, however its targets are split into steps and wherever
pages of targets and sources are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire.calibration import calibrate
from fusewire.errors import CheckpointError, ConfigurationError, InvalidInput
from fusewire.models import SpeechModel, check_folder, load_decoder, tasks_of
from fusewire.models.config import read_config
from fusewire.parity import parity
from fusewire.placement import Placement
from numpy.typing import NDArray

from tests.models.paged_texts import PagedTexts, logits_in_pieces
from tests.models.test_model_refusals import edit_weights
from tests.models.tiny_seq2seq import random_texts
from tests.models.tiny_whisper import (
    BINS,
    POSITIONS,
    random_features,
    teacher_forced_logits,
    tiny_whisper,
)
from tests.places import CPU, GPU_FP32, on_gpu
from tests.reference import edit_config
from tests.tolerance import BATCHED_VERSUS_ALONE, GPU_BATCHED_VERSUS_ALONE, MODEL_FP32

everywhere = pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)

TARGETS = (14, 1, 33)


class Heard:
    """Features as a source of `PagedTexts`, whose length is that of their rows in the cache."""

    def __init__(self, features: NDArray[np.float32]) -> None:
        self.features = features

    def __len__(self) -> int:
        return len(self.features) // 2


class PagedSpeech(PagedTexts):
    def encode(self, sources: Sequence[Any]) -> None:
        assert isinstance(self.model, SpeechModel)
        table = self.sources_of(range(len(sources))).block_table
        batch = self.model.source_batch([each.features for each in sources], table)
        self.model.encode(batch, self.cache)


@pytest.fixture(autouse=True)
def speech(monkeypatch):
    monkeypatch.setattr("tests.models.paged_texts.PagedTexts", PagedSpeech)


def loaded(folder: Path, place: Placement | None = None) -> SpeechModel:
    model = load_decoder(folder, place)
    assert isinstance(model, SpeechModel)
    return model


def ours(
    model: SpeechModel,
    features: Sequence[NDArray[np.float32]],
    targets: Sequence[Sequence[int]],
    most: int | None,
) -> list[NDArray[np.float32]]:
    sources: list[Any] = [Heard(each) for each in features]
    return logits_in_pieces(model, targets, most, sources=sources)


def difference(reference: Any, model: SpeechModel, most: int | None) -> float:
    """Returns the largest difference between our logits, in pieces of up to `most` tokens, and
    transformers'."""
    features = random_features(len(TARGETS), bins=model.features_shape[1])
    targets = random_texts(model.vocab_size, TARGETS, seed=1)
    worst = 0.0
    wanted = teacher_forced_logits(reference, features, targets)
    for got, theirs in zip(ours(model, features, targets, most), wanted, strict=True):
        assert got.shape == theirs.shape
        assert np.isfinite(got).all()
        assert np.ptp(theirs) > 1  # equal logits would prove nothing
        worst = max(worst, float(np.abs(got - theirs).max()))
    return worst


@everywhere
@pytest.mark.parametrize("most", [None, 1, 7], ids=["whole", "tokens", "pieces"])
def test_logits_equal_transformers(tmp_path, most, place: Placement):
    reference = tiny_whisper(tmp_path).to(place.device)
    assert difference(reference, loaded(tmp_path, place), most) <= MODEL_FP32


@everywhere
@pytest.mark.parametrize(
    "sizes",
    [
        {"d_model": 30, "decoder_attention_heads": 5, "encoder_attention_heads": 3},
        {"num_mel_bins": 7, "activation_function": "relu"},
        {"encoder_layers": 1, "decoder_layers": 4, "max_target_positions": 40},
        {"tie_word_embeddings": False, "scale_embedding": True},
    ],
    ids=str,
)
def test_options_and_odd_sizes(tmp_path, sizes, place: Placement):
    reference = tiny_whisper(tmp_path, **sizes).to(place.device)
    assert difference(reference, loaded(tmp_path, place), 7) <= MODEL_FP32


@everywhere
def test_an_answer_is_the_same_alone_and_beside_others(tmp_path, place: Placement):
    tiny_whisper(tmp_path)
    model = loaded(tmp_path, place)
    features = random_features(len(TARGETS))
    targets = random_texts(model.vocab_size, TARGETS, seed=1)
    allowed = GPU_BATCHED_VERSUS_ALONE if on_gpu(place) else BATCHED_VERSUS_ALONE
    together = ours(model, features, targets, 7)
    for each, target, wanted in zip(features, targets, together, strict=True):
        [got] = ours(model, [each], [target], None)
        assert np.abs(got - wanted).max() <= allowed * max(1.0, np.abs(wanted).max())


def test_the_ends_of_a_source_see_nothing_of_its_neighbours(tmp_path):
    tiny_whisper(tmp_path)
    model = loaded(tmp_path)
    loud = [each * 100 for each in random_features(2, seed=5)]
    [quiet] = random_features(1)
    [target] = random_texts(model.vocab_size, [5], seed=1)
    [alone] = ours(model, [quiet], [target], None)
    between = ours(model, [loud[0], quiet, loud[1]], [target] * 3, None)[1]
    np.testing.assert_array_equal(between, alone)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.zeros((2 * POSITIONS - 1, BINS), np.float32), r"shape \[1, 99, 20\], wanted float32"),
        (
            np.zeros((2 * POSITIONS, BINS + 1), np.float32),
            r"shape \[1, 100, 21\], wanted float32 of",
        ),
        (np.zeros((2 * POSITIONS, BINS)), "float64 of shape"),
        (np.full((2 * POSITIONS, BINS), np.nan, np.float32), "a number that is not finite"),
    ],
    ids=["frames", "bins", "dtype", "nan"],
)
def test_features_of_another_model_are_refused(tmp_path, features, message):
    tiny_whisper(tmp_path)
    with pytest.raises(InvalidInput, match=f"features: got (float32 of )?{message}"):
        ours(loaded(tmp_path), [features], [[5]], None)


def test_a_folder_is_for_transcribing(tmp_path):
    tiny_whisper(tmp_path)
    assert tasks_of(read_config(tmp_path)) == "transcribe"
    check_folder(tmp_path, "transcribe")
    edit_config(tmp_path, num_mel_bins=BINS + 1)
    with pytest.raises(
        CheckpointError, match=r"encoder.conv1.weight.*\[48, 20, 3\].*\[48, 21, 3\]"
    ):
        check_folder(tmp_path, "transcribe")


def test_a_bias_of_keys_is_refused(tmp_path):
    """Tensors that other architectures have are not silently ignored."""
    tiny_whisper(tmp_path)
    name = "model.encoder.layers.0.self_attn.k_proj.bias"
    edit_weights(tmp_path, lambda tensors: tensors.update({name: np.ones(48, np.float32)}))
    with pytest.raises(CheckpointError, match=r"unexpected: 'encoder.layers.0.self_attn.k_proj"):
        load_decoder(tmp_path)


@everywhere
def test_check_compares_logits_and_greedy_tokens(tmp_path, place: Placement):
    tiny_whisper(tmp_path)
    measured = parity(tmp_path, device=place.device, dtype=place.dtype, sequences=4)
    assert measured.task == "transcribe"
    assert measured.architecture == "WhisperForConditionalGeneration"
    assert measured.tokens > 4 * POSITIONS
    assert measured.greedy_equal == measured.greedy_tokens == 4 * 16
    assert measured.passed, measured


def test_check_reads_no_texts(tmp_path):
    tiny_whisper(tmp_path)
    texts = tmp_path / "texts.txt"
    texts.write_text("some text\n")
    with pytest.raises(ConfigurationError, match="texts: got a model of speech"):
        parity(tmp_path, texts=texts)


def test_quantising_is_not_measured_by_texts(tmp_path):
    tiny_whisper(tmp_path)
    with pytest.raises(ConfigurationError, match="calibrate: got a model of speech"):
        calibrate(tmp_path, "transcribe", "int8")


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_weights_in_fewer_bits_are_near(tmp_path, quantize):
    reference = tiny_whisper(tmp_path)
    place = Placement("cpu", "auto" if quantize == "int8" else "bfloat16", quantize)
    off = difference(reference, loaded(tmp_path, place), None)
    assert MODEL_FP32 < off < 1.0  # logits are spread over 20

"""Features equal those of transformers' extractor."""

from __future__ import annotations

import json

import numpy as np
import pytest
import transformers
from fusewire.audio import LogMel, read_log_mel
from fusewire.errors import CheckpointError

from tests.tolerance import LOG_MEL, LOG_MEL_FLOAT32

RATE = 16000


def clips() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    seconds = np.arange(5 * RATE) / RATE
    chirp = 0.5 * np.sin(2 * np.pi * (100 + 700 * seconds) * seconds)
    return {
        "noise": rng.normal(0, 0.2, 3 * RATE).astype(np.float32),
        "chirp": chirp.astype(np.float32),
        "quiet": (1e-4 * chirp).astype(np.float32),
        "whole": rng.uniform(-1, 1, 30 * RATE).astype(np.float32),
        "silence": np.zeros(160, np.float32),
        "one sample": np.ones(1, np.float32),
    }


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("name", clips())
def test_features_equal_transformers(tmp_path, name, bins):
    theirs = transformers.WhisperFeatureExtractor(feature_size=bins)
    theirs.save_pretrained(tmp_path)
    ours = read_log_mel(tmp_path)
    audio = clips()[name]
    got = ours.features(audio)
    assert got.shape == (ours.frames, ours.bins) == (3000, bins)
    padded = np.zeros(30 * RATE, np.float32)
    padded[: audio.size] = audio
    [exact] = theirs._np_extract_fbank_features(padded[None], "cpu")
    np.testing.assert_allclose(got.T, exact, rtol=0, atol=LOG_MEL)
    # The result of `__call__` is computed by torch in float32.
    [called] = theirs(audio, sampling_rate=RATE)["input_features"]
    np.testing.assert_allclose(got.T, called, rtol=0, atol=LOG_MEL_FLOAT32)


@pytest.mark.parametrize("samples", [30 * RATE + 1, 45 * RATE + 37, 60 * RATE, 61 * RATE + 159])
def test_long_audio_has_features_as_long_as_it_is(tmp_path, samples):
    theirs = transformers.WhisperFeatureExtractor()
    theirs.save_pretrained(tmp_path)
    rng = np.random.default_rng(samples)
    audio = (rng.normal(0, 0.1, samples) * np.linspace(0, 1, samples)).astype(np.float32)
    got = read_log_mel(tmp_path).features(audio)
    assert got.shape == (samples // 160, 80)
    [exact] = theirs._np_extract_fbank_features(audio[None], "cpu")
    np.testing.assert_allclose(got.T, exact, rtol=0, atol=LOG_MEL)


def test_a_file_with_other_sizes_is_read(tmp_path):
    theirs = transformers.WhisperFeatureExtractor(
        feature_size=40, n_fft=512, hop_length=256, chunk_length=2
    )
    theirs.save_pretrained(tmp_path)
    ours = read_log_mel(tmp_path)
    assert ours == LogMel(40, RATE, 512, 256, 2)
    audio = clips()["noise"][: 2 * RATE]
    [exact] = theirs._np_extract_fbank_features(audio[None], "cpu")
    np.testing.assert_allclose(ours.features(audio).T, exact, rtol=0, atol=LOG_MEL)


def test_a_newer_folder_has_them_in_another_file(tmp_path):
    own = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128}
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": own}))
    assert read_log_mel(tmp_path) == LogMel(128, RATE, 400, 160, 30)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "preprocessor_config.json: got no such file"),
        ({"feature_extractor_type": "Wav2Vec2FeatureExtractor"}, "feature_extractor_type: got"),
        ({"dither": 0.1}, "dither: got 0.1, wanted 0"),
        ({"padding_value": 1.0}, "padding_value: got 1.0, wanted 0"),
        ({"n_fft": 401}, "n_fft: got 401, wanted an even number"),
        ({"hop_length": 0}, r"hop_length: got 0, wanted a whole number in 1\.\."),
        ({"chunk_length": 10**9}, "chunk_length: got 1000000000"),
        ({"feature_size": "80"}, "feature_size: got '80'"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused(tmp_path, values, message):
    if values is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=message):
        read_log_mel(tmp_path)

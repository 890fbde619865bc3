"""A request with audio is read as it was sent, or rejected by name."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from fusewire.audio import AudioReader, LogMel
from fusewire.errors import InvalidInput
from fusewire.generation.limits import GenerationLimits, SourceLimits
from fusewire.generation.parameter_reader import ParameterReader
from fusewire.generation.prompt import AudioFeatures
from fusewire.generation.speech import SpeechTokens
from fusewire.tasks.transcribe import TranscribeRequest, read

from tests.audio.waves import wave_file

LOG_MEL = LogMel(20, 16000, 400, 160, 1)
SPEECH = SpeechTokens({"en": 51, "de": 52}, {"transcribe": 53, "translate": 54}, 59, 5, 0.02, 50)
LIMITS = GenerationLimits(110, 64, 512, 8, SourceLimits(0, 50, ""), SPEECH, 2)
PCM = (np.arange(-800, 800) * 20).astype("<i2")
WAVE = wave_file(PCM.tobytes())


def asked(parameters: dict[str, Any] | None = None, **inputs: Any) -> TranscribeRequest:
    arrays = {
        name: value if isinstance(value, np.ndarray) else np.array([value], object)
        for name, value in inputs.items()
    }
    audio = AudioReader(LOG_MEL, LIMITS.max_audio_seconds)
    return read(arrays, parameters or {}, ParameterReader(LIMITS), audio)


def test_a_file_its_base64_and_its_samples_are_one_audio_input():
    samples = PCM.astype(np.float32) / 32768
    found = [
        asked(audio=WAVE),
        asked(audio=base64.b64encode(WAVE)),
        asked(audio=base64.b64encode(WAVE).decode()),
        asked(samples=samples),
    ]
    for one in found:
        assert isinstance(one.prompt, AudioFeatures)
        np.testing.assert_array_equal(one.prompt.features, LOG_MEL.features(samples))


def test_segments_ask_for_timestamps():
    flags = {"return_segments": np.array([True]), "return_language": np.array([True])}
    assert asked(audio=WAVE, **flags).returned == {"segments", "language"}
    assert asked(audio=WAVE, **flags).parameters.return_timestamps
    assert not asked(audio=WAVE).parameters.return_timestamps
    said = json.dumps({"return_timestamps": False})
    assert not asked(audio=WAVE, sampling_parameters=said, **flags).parameters.return_timestamps
    assert asked({"language": "german"}, audio=WAVE).parameters.language == "german"


@pytest.mark.parametrize(
    ("inputs", "parameters", "message"),
    [
        ({}, {}, "audio: got no audio, wanted audio or samples"),
        ({"audio": WAVE, "samples": np.zeros(9, np.float32)}, {}, "audio: got audio and samples"),
        (
            {"text_input": "a"},
            {},
            "text_input: got an unknown tensor, wanted one of audio, samples",
        ),
        ({"audio": "no file"}, {}, "audio: got 7 bytes of another format"),
        ({"audio": np.array([WAVE, WAVE], object)}, {}, r"audio: got shape \[2\], wanted shape"),
        ({"audio": np.array([5], object)}, {}, "audio: got int, wanted bytes of an audio file"),
        ({"samples": np.zeros((2, 9), np.float32)}, {}, r"samples: got shape \[2, 9\]"),
        ({"audio": WAVE}, {"language": "fr"}, "language: got 'fr', wanted one of en, de"),
        ({"audio": WAVE}, {"task": "hum"}, "task: got 'hum'"),
        ({"audio": WAVE}, {"prompt_logprobs": 1}, "prompt_logprobs: got 1"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused(inputs, parameters, message):
    with pytest.raises(InvalidInput, match=message):
        asked(parameters, **inputs)

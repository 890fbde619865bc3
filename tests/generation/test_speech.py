"""Timestamps of segments, and names of languages."""

from __future__ import annotations

import pytest
from fusewire.generation.speech import Segment, SpeechTokens
from fusewire.generation.speech_languages import code_of
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

SPEECH = SpeechTokens({"en": 51, "de": 52}, {"transcribe": 53, "translate": 54}, 59, 5, 0.02, 50)


@pytest.mark.parametrize(
    ("tokens", "segments"),
    [
        ([], []),
        ([60], []),
        ([1, 2], [Segment(None, None, [1, 2])]),
        ([60, 1, 2, 70], [Segment(0.0, 0.2, [1, 2])]),
        ([60, 1, 70, 70, 2, 3, 85], [Segment(0.0, 0.2, [1]), Segment(0.2, 0.5, [2, 3])]),
        ([61, 1, 70, 75, 2], [Segment(0.02, 0.2, [1]), Segment(0.3, None, [2])]),
        ([60, 1, 70, 75, 50], [Segment(0.0, 0.2, [1])]),
    ],
    ids=str,
)
def test_segments(tokens, segments):
    assert list(SPEECH.segments(tokens)) == segments


def test_languages_are_known_by_code_token_and_name():
    assert [SPEECH.known(name) for name in ("de", "<|de|>", "German", "DE", "fr", "")] == [
        *["de"] * 4,
        None,
        None,
    ]
    assert {name: code_of(name) for name in TO_LANGUAGE_CODE} == TO_LANGUAGE_CODE


def test_what_a_text_begins_with():
    assert SPEECH.begin("de", None, timestamps=False) == [52, 53, 59]
    assert SPEECH.begin("en", "translate", timestamps=True) == [51, 54]

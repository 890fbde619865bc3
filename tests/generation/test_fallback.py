"""Which texts of a window are rejected."""

from __future__ import annotations

import random

import pytest
import torch
from fusewire.generation.fallback import Fallback, compression_ratio
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

TOKENS = [7] * 40


@pytest.mark.parametrize("vocab_size", [200, 255, 256, 51864, 51866, 1 << 17])
def test_a_texts_ratio_is_that_of_transformers(vocab_size):
    chosen = random.Random(vocab_size)
    for most in (1, 3, vocab_size - 1):
        tokens = [chosen.randint(0, most) for _ in range(chosen.randint(1, 200))]
        wanted = WhisperGenerationMixin._retrieve_compression_ratio(
            torch.tensor(tokens), vocab_size
        )
        assert compression_ratio(tokens, vocab_size) == wanted


def test_a_threshold_that_is_not_there_does_not_count():
    none = Fallback((0.0,), None, None, None)
    assert not none.is_repetitive(TOKENS, 51866)
    assert not none.is_unlikely(-100.0)
    assert not none.is_silence(1.0)


def test_thresholds_are_those_of_transformers():
    """A value equal to a threshold is accepted."""
    ratio = compression_ratio(TOKENS, 51866)
    assert ratio > 2.4
    assert Fallback((0.0,), ratio - 1e-9, None, None).is_repetitive(TOKENS, 51866)
    assert not Fallback((0.0,), ratio, None, None).is_repetitive(TOKENS, 51866)
    assert Fallback((0.0,), None, -1.0, None).is_unlikely(-1.001)
    assert not Fallback((0.0,), None, -1.0, None).is_unlikely(-1.0)
    assert Fallback((0.0,), None, None, 0.6).is_silence(0.61)
    assert not Fallback((0.0,), None, None, 0.6).is_silence(0.6)

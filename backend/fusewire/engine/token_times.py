"""When the tokens of a text are said in an audio input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusewire.engine.source_pages import SourcePages
from fusewire.generation.speech import SpeechTokens
from fusewire.generation.speech_times import token_positions
from fusewire.models.decoder_cache import DecoderCache
from fusewire.models.speech_model import SpeechModel
from fusewire.models.step_batch import SourceTable


class TokenTimes:
    """Finds the times of tokens with a model of speech that has alignment heads. It reads a text
    once more, in pages of the cache that no sequence has; the encoder's keys are those that the
    text was written with."""

    def __init__(
        self, model: SpeechModel, speech: SpeechTokens, cache: DecoderCache, first_page: int
    ) -> None:
        """`first_page`: its pages are those from here on, which hold the longest text."""
        self._model = model
        self._speech = speech
        self._cache = cache
        self._first_page = first_page

    def find(
        self, begun: Sequence[int], tokens: Sequence[int], source: SourcePages, heard: int
    ) -> list[float]:
        """When each of the tokens has been said, in seconds after the window's beginning. They were
        written after those that the decoder had `begun` with. The first `heard` positions of the
        source are audio. The last token, which the decoder has not read, ends with the one
        before."""
        speech = self._speech
        if len(tokens) < 2:
            return [0.0] * len(tokens)
        length = np.array([len(source.source)], np.int32)
        table = SourceTable(length, np.array([source.table], np.int32))
        read = [*begun, *tokens[:-1]]
        weights = self._model.head_weights(
            read, table, self._cache, self._first_page, speech.alignment_heads
        )
        positions = token_positions(weights[:, len(begun) :, :heard], speech.median_filter_width)
        ends = (positions * speech.seconds_per_position).round(6).tolist()
        return [*ends, ends[-1]]

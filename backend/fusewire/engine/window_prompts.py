"""What the decoder begins with in a window of audio: tokens for language, task and timestamps, and
what stands before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewire.engine.spoken import Spoken, timestamps_of
from fusewire.generation.limits import GenerationLimits
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import AudioFeatures, Prompt, read_audio
from fusewire.generation.speech import SpeechTokens
from fusewire.models import SpeechModel


@dataclass(frozen=True)
class HeardWindow:
    """What is heard at once, after what was `written` of the windows before, of which it may have
    the place (`goes_on`). At least `windows_behind` windows come after it."""

    audio: AudioFeatures
    language: str | None
    written: Sequence[int] = ()
    goes_on: bool = False
    windows_behind: int = 0


class WindowPrompts:
    """Makes the prompts of windows, for one model."""

    def __init__(self, model: SpeechModel, speech: SpeechTokens, limits: GenerationLimits) -> None:
        self._model = model
        self._speech = speech
        self._limits = limits

    def begin(self, window: HeardWindow, parameters: GenerationParameters) -> tuple[Prompt, Spoken]:
        """The prompt of a window, and what audio adds to its request; InvalidInput where there is
        no room after what it begins with."""
        speech, timestamps = self._speech, bool(parameters.return_timestamps)
        audio, windows_behind = window.audio, window.windows_behind
        begin = speech.begin(window.language, parameters.task, timestamps=timestamps)
        ids = [self._model.decoder_start_token_id, *begin]
        previous = self._previous(parameters, window.written)
        if windows_behind and parameters.condition_on_prev_tokens:  # refused now, if at all
            read_audio(audio, parameters, self._limits, len(ids) + 1 + self._most_previous)
        prompt = read_audio(audio, parameters, self._limits, len(ids) + len(previous))
        return prompt, Spoken(
            ids,
            timestamps_of(speech) if timestamps else None,
            previous,
            window.goes_on,
            windows_behind * self._model.max_source_length,
            windows_behind * prompt.max_new_tokens,
            self._heard(audio) if parameters.times_words else 0,
        )

    def _heard(self, audio: AudioFeatures) -> int:
        """Positions of the encoder that hear audio, and not the silence after it."""
        frames_per_position = self._model.features_shape[0] // self._model.max_source_length
        heard = audio.features.shape[0] if audio.heard is None else audio.heard
        return max(1, heard // frames_per_position)

    def _previous(self, parameters: GenerationParameters, written: Sequence[int]) -> list[int]:
        """What stands before a window's text: as transformers has it, the request's `prompt_ids`
        before each, or before the text so far where that is wanted."""
        token = self._speech.previous
        given = [each for each in parameters.prompt_ids if each != token]
        if parameters.condition_on_prev_tokens:
            given += written
        if token is None or not given:
            return []
        return [token, *given[-self._most_previous :]]

    @property
    def _most_previous(self) -> int:
        """Most tokens of what stands before: half of the model's positions with the one in front of
        them."""
        return self._model.max_length // 2 - 1

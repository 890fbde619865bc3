"""What sound adds to a request for a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fusewire.engine.branches import Event
from fusewire.engine.continuation import Delta
from fusewire.engine.token_masks import Timestamps, TokenMask
from fusewire.generation.speech import SpeechTokens


@dataclass(frozen=True)
class Spoken:
    begin: list[int]  # what the decoder begins with
    mask: TokenMask | None


def timestamps_of(speech: SpeechTokens) -> Timestamps:
    return Timestamps(speech.timestamp_begin, speech.eos, speech.max_initial_timestamp)


def with_language(callback: Callable[[Event], None], language: str) -> Callable[[Event], None]:
    """Each Delta says it."""

    def told(event: Event) -> None:
        if isinstance(event, Delta):
            event.language = language
        callback(event)

    return told

"""What audio adds to a request for a text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fusewire.engine.branches import Event
from fusewire.engine.continuation import Delta
from fusewire.engine.token_masks import Timestamps, TokenMask
from fusewire.generation.speech import SpeechTokens


@dataclass(frozen=True)
class Spoken:
    begin: list[int]  # what the decoder begins with
    mask: TokenMask | None
    previous: list[int] = field(default_factory=list)  # and what stands before that
    goes_on: bool = False  # has the place of a request of the same audio that has just ended
    # For the requests of the same audio after it: positions that they read, and tokens that each of
    # their sequences may generate.
    later_tokens: int = 0
    later_new: int = 0
    heard: int = 0  # positions of the audio with which tokens are aligned; 0: they are not
    # Whether log-probabilities are those of the tokens that may come, by which a text is judged.
    judged: bool = False


def timestamps_of(speech: SpeechTokens) -> Timestamps:
    return Timestamps(speech.timestamp_begin, speech.eos, speech.max_initial_timestamp)


def with_language(callback: Callable[[Event], None], language: str) -> Callable[[Event], None]:
    """A callback that passes events on to `callback`, each Delta with the language."""

    def told(event: Event) -> None:
        if isinstance(event, Delta):
            event.language = language
        callback(event)

    return told


def with_segments(
    callback: Callable[[Event], None], speech: SpeechTokens
) -> Callable[[Event], None]:
    """A callback that passes events on to `callback`, the last Delta of each text with its
    segments."""
    said: defaultdict[int, list[int]] = defaultdict(list)

    def told(event: Event) -> None:
        if isinstance(event, Delta):
            said[event.index] += event.token_ids
            if event.finish_reason is not None:
                window = event.decoded_window(0)
                segments = speech.segments(said.pop(event.index), event.token_ends)
                event.segments = [replace(each, window=window) for each in segments]
        callback(event)

    return told

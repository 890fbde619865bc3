"""The words of a segment with the times of its tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fusewire.generation.speech import Segment
from fusewire.text.words import words_of

# Languages that are written without spaces between words.
_UNSPACED = frozenset(("zh", "ja", "th", "lo", "my", "yue"))


@dataclass(frozen=True, slots=True)
class Word:
    """A word with the space and punctuation beside it, said from `start` on until `end`, in
    seconds."""

    word: str
    start: float
    end: float


def timed_words(
    segment: Segment, language: str | None, decode: Callable[[list[int]], str]
) -> list[Word] | None:
    """The words of a segment with their times; None where its tokens have no times."""
    times = segment.times
    if times is None:
        return None
    words = words_of(segment.token_ids, decode, spaced=language not in _UNSPACED)
    return [Word(each.text, times[each.begin][0], times[each.end - 1][1]) for each in words]

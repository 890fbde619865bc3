"""Groups tokens into words, as transformers' Whisper and openai-whisper split a text: at spaces, or
between any two characters for languages written without them. Punctuation belongs to an adjacent
word."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_BROKEN = "\ufffd"  # the decoded form of an incomplete character
_OPENING = "\"'“¡¿([{-"
_CLOSING = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001


@dataclass(frozen=True)
class Piece:
    """A part of a text, from its tokens [begin, end)."""

    text: str
    begin: int
    end: int

    def __add__(self, behind: Piece) -> Piece:
        return Piece(self.text + behind.text, self.begin, behind.end)

    @property
    def opens(self) -> bool:
        return self.text.startswith(" ") and self.text.strip() in _OPENING


def words_of(
    token_ids: Sequence[int], decode: Callable[[list[int]], str], *, spaced: bool
) -> list[Piece]:
    """Returns the words of a text, which concatenate to the text. `spaced`: whether its language is
    written with spaces between words."""
    pieces = [*_characters(token_ids, decode)]
    return _with_closing(_with_opening(_at_spaces(pieces) if spaced else pieces))


def _characters(token_ids: Sequence[int], decode: Callable[[list[int]], str]) -> Iterator[Piece]:
    """Yields pieces of as few tokens as make whole characters, or an invalid character of the text
    itself."""
    whole, begin, length = decode([*token_ids]), 0, 0
    for end in range(1, len(token_ids) + 1):
        text = decode([*token_ids[begin:end]])
        place = length + text.find(_BROKEN)
        if _BROKEN not in text or place >= len(whole) or whole[place] == _BROKEN:
            yield Piece(text, begin, end)
            begin, length = end, length + len(text)


def _at_spaces(pieces: Sequence[Piece]) -> list[Piece]:
    """Joins pieces to words. A space or punctuation begins a word."""
    words: list[Piece] = []
    for piece in pieces:
        if (
            words
            and not piece.text.startswith(" ")
            and piece.text.strip() not in string.punctuation
        ):
            words[-1] += piece
        else:
            words.append(piece)
    return words


def _with_opening(words: Sequence[Piece]) -> list[Piece]:
    """Joins opening punctuation to the word after it."""
    joined: list[Piece] = []  # in reverse order
    for word in reversed(words):
        if joined and word.opens:
            joined[-1] = word + joined[-1]
        else:
            joined.append(word)
    return joined[::-1]


def _with_closing(words: Sequence[Piece]) -> list[Piece]:
    """Joins closing punctuation to the word before it."""
    joined: list[Piece] = []
    for word in words:
        if joined and not joined[-1].text.endswith(" ") and word.text in _CLOSING:
            joined[-1] += word
        else:
            joined.append(word)
    return joined

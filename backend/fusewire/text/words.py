"""Tokens to words, as transformers' Whisper and openai-whisper divide a text: at spaces, or between
any two characters where a language is written without them; punctuation belongs to a word beside
it."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_BROKEN = "\ufffd"  # in place of bytes that are no character yet
_OPENING = "\"'“¡¿([{-"
_CLOSING = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001


@dataclass(frozen=True)
class Piece:
    """A part of a text, of its tokens from `begin` until `end`."""

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
    """The words of a text, which they make up together. `spaced`: whether its language is written
    with spaces between words."""
    pieces = [*_characters(token_ids, decode)]
    return _with_closing(_with_opening(_at_spaces(pieces) if spaced else pieces))


def _characters(token_ids: Sequence[int], decode: Callable[[list[int]], str]) -> Iterator[Piece]:
    """As few tokens as make whole characters, or what is broken in the text itself."""
    whole, begin, length = decode([*token_ids]), 0, 0
    for end in range(1, len(token_ids) + 1):
        text = decode([*token_ids[begin:end]])
        place = length + text.find(_BROKEN)
        if _BROKEN not in text or place >= len(whole) or whole[place] == _BROKEN:
            yield Piece(text, begin, end)
            begin, length = end, length + len(text)


def _at_spaces(pieces: Sequence[Piece]) -> list[Piece]:
    """A space begins a word, and so does punctuation."""
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
    """What opens the word behind it belongs to that."""
    joined: list[Piece] = []  # from the last one on
    for word in reversed(words):
        if joined and word.opens:
            joined[-1] = word + joined[-1]
        else:
            joined.append(word)
    return joined[::-1]


def _with_closing(words: Sequence[Piece]) -> list[Piece]:
    """What closes the word in front of it belongs to that."""
    joined: list[Piece] = []
    for word in words:
        if joined and not joined[-1].text.endswith(" ") and word.text in _CLOSING:
            joined[-1] += word
        else:
            joined.append(word)
    return joined

"""Joins pieces of a SentencePiece model to text, one by one, as transformers' Python classes
(Marian, M2M-100) do: text between special tokens is decoded as in the `sentencepiece` package, and
white space is stripped from both ends of the whole. PLBart's class ignores the types of pieces."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from fusewire.text.sentencepiece_backend import SPACE
from fusewire.text.sentencepiece_model import BYTE, CONTROL, UNKNOWN, SentencePieceModel

_UNKNOWN_TEXT = " \u2047 "
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_ONE_BYTE = "fusewire.one_byte"
codecs.register_error(_ONE_BYTE, lambda error: ("\ufffd", getattr(error, "start", 0) + 1))


class Stream(Protocol):
    """The growing text of one sequence."""

    def step(self, piece: str) -> str: ...
    def flush(self) -> str: ...


class Joining(Protocol):
    """How pieces become text."""

    def text(self, pieces: Collection[str]) -> str: ...
    def stream(self) -> Stream: ...


@dataclass(frozen=True)
class PieceJoining:
    """`kinds`: types of the file's pieces. `special`: tokens that are written as they are, each
    followed by `behind_special`. `plain_spaces`: whether the space mark is also replaced in pieces
    that the file does not have, such as those of the other language."""

    kinds: Mapping[str, int]
    special: Collection[str]
    behind_special: str
    plain_spaces: bool
    takes_first_space: bool
    takes_first_spaces: bool

    @staticmethod
    def of(
        model: SentencePieceModel,
        special: Collection[str],
        *,
        behind_special: str = "",
        plain_spaces: bool = False,
    ) -> PieceJoining:
        return PieceJoining(
            {text: kind for text, _, kind in model.pieces},
            frozenset(special),
            behind_special,
            plain_spaces,
            model.add_dummy_prefix or model.remove_extra_whitespaces,
            model.remove_extra_whitespaces,
        )

    @staticmethod
    def plain(special: Collection[str]) -> PieceJoining:
        """Returns the joining for pieces of any type, whose space mark becomes a space."""
        return PieceJoining({}, frozenset(special), "", True, False, False)

    def stream(self) -> PieceStream:
        return PieceStream(self)

    def text(self, pieces: Collection[str]) -> str:
        stream = self.stream()
        return "".join([*map(stream.step, pieces), stream.flush()])


class PieceStream:
    """The growing text of one sequence. White space and bytes at its end are held back."""

    def __init__(self, joining: PieceJoining) -> None:
        self._joining = joining
        self._bytes = bytearray()
        self._at_front = True  # of the text between special tokens
        self._begun = False
        self._held: list[str] = []

    def step(self, piece: str) -> str:
        """Returns the text that one more piece makes final."""
        kind = self._joining.kinds.get(piece)
        if piece in self._joining.special:
            text = self._run_of_bytes() + piece + self._joining.behind_special
            self._at_front = True
        elif kind == BYTE and (byte := _BYTE.fullmatch(piece)):
            self._bytes.append(int(byte[1], 16))
            return ""
        else:
            text = self._run_of_bytes()
            text += self._spelled(piece, kind)
        return self._trimmed(text)

    def flush(self) -> str:
        """Returns the text of bytes that no other piece has followed, at the end of the
        sequence."""
        return self._trimmed(self._run_of_bytes())

    def _spelled(self, piece: str, kind: int | None) -> str:
        if kind == CONTROL:
            return ""
        joining = self._joining
        if self._at_front and kind not in (None, UNKNOWN) and joining.takes_first_space:
            without = piece.removeprefix(SPACE)
            self._at_front = not without and (joining.takes_first_spaces or without == piece)
            piece = without
        else:
            self._at_front = self._at_front and not piece
        if kind == UNKNOWN:
            return _UNKNOWN_TEXT
        return piece.replace(SPACE, " ") if kind is not None or joining.plain_spaces else piece

    def _run_of_bytes(self) -> str:
        """Returns the text of the collected bytes. Each byte that is not part of a character
        becomes one U+FFFD."""
        text = self._bytes.decode("utf-8", _ONE_BYTE)
        self._bytes.clear()
        self._at_front = self._at_front and not text
        return text

    def _trimmed(self, text: str) -> str:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        end = len(text.rstrip())
        if not end:
            self._held.append(text)
            return ""
        certain = "".join([*self._held, text[:end]])
        self._held = [text[end:]]
        return certain

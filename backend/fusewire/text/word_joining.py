"""Pieces to text where a word is spelled by its own pieces: those that go on end in `@@`."""

from __future__ import annotations

from collections.abc import Collection

GOES_ON = "@@"
_UNCERTAIN = "@ \t\n\r"  # at the end of a text


class WordJoining:
    """Pieces to text: a space between two, but none behind one that goes on."""

    def text(self, pieces: Collection[str]) -> str:
        return " ".join(pieces).replace(GOES_ON + " ", "").strip()

    def stream(self) -> WordStream:
        return WordStream()


class WordStream:
    """The growing text of one sequence. White space at its end, and the mark of a piece that goes
    on, are held back."""

    def __init__(self) -> None:
        self._begun = False
        self._told = False
        self._held = ""

    def step(self, piece: str) -> str:
        """The text that is certain with one more piece."""
        text = self._held + (" " if self._begun else "") + piece
        self._begun = True
        text = text.replace(GOES_ON + " ", "")
        end = len(text.rstrip(_UNCERTAIN))
        self._held = text[end:]
        return self._trimmed(text[:end])

    def flush(self) -> str:
        text, self._held = self._held.rstrip(), ""
        return self._trimmed(text)

    def _trimmed(self, text: str) -> str:
        if not self._told:
            text = text.lstrip()
            self._told = bool(text)
        return text

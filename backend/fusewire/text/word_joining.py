"""Joins pieces to text where each word has its own pieces. Pieces that do not end a word end in
`@@`."""

from __future__ import annotations

from collections.abc import Collection

GOES_ON = "@@"
_UNCERTAIN = "@ \t\n\r"  # held back at the end of a text


class WordJoining:
    """Joins pieces with a space between two, but none after a piece that does not end a word."""

    def text(self, pieces: Collection[str]) -> str:
        return " ".join(pieces).replace(GOES_ON + " ", "").strip()

    def stream(self) -> WordStream:
        return WordStream()


class WordStream:
    """The growing text of one sequence. White space and the mark `@@` at its end are held back."""

    def __init__(self) -> None:
        self._begun = False
        self._told = False
        self._held = ""

    def step(self, piece: str) -> str:
        """Returns the text that one more piece makes final."""
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

"""The text of a single token, as in log probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

# Ids that are tried. Most vocabularies have a word or a letter among the first hundreds.
_LOOKED_INTO = 8192


class TokenText:
    """Returns the text that a token adds after other text.

    Many decoders treat a token alone as the first of a text, and remove its space (SentencePiece's
    "▁the"). So it is decoded after another token, whose text is then removed.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        spelling: Callable[[int], str | None],
        spelled_bytes: Callable[[str], bytes | None],
    ) -> None:
        """`decode`: converts ids to text. `spelling`: returns a token's string in the vocabulary.
        `spelled_bytes`: returns the bytes that such a string represents, or None where it is
        text."""
        self._decode = decode
        self._spelling = spelling
        self._spelled_bytes = spelled_bytes

    def __call__(self, token: int) -> str:
        if self._before is not None:
            before, length = self._before
            whole = self._decode([before, token])
            if len(whole) >= length:
                return whole[length:]
        return self._decode([token])

    def part(self, token: int) -> bytes | None:
        """Returns the bytes of a token that has no text of its own because they are not whole
        characters, or None for another token."""
        spelled = self._spelled_bytes(self._spelling(token) or "")
        try:
            (spelled or b"").decode()
        except UnicodeDecodeError:
            return spelled
        return None

    def unseen(self, ids: Sequence[int], special: frozenset[int], text: str) -> int:
        """Returns the number of characters in the texts of the first tokens that are not in `text`,
        the text of these ids: special tokens that the tokenizer added, and the space of a first
        word."""
        count = 0
        for token in ids:
            piece = self(token)
            if token in special:
                if text.startswith(piece):
                    text = text[len(piece) :]
                else:
                    count += len(piece)
            else:
                return count + (piece.startswith(" ") and not text.startswith(" "))
        return count

    @cached_property
    def _before(self) -> tuple[int, int] | None:
        """A token with a text of its own, and the length of this text. It is not a byte of a
        character ("<0x41>"), which would be decoded together with the next token."""
        for token in range(_LOOKED_INTO):
            spelling = self._spelling(token)
            if not spelling or spelling.startswith("<"):
                continue
            text = self._decode([token])
            if text.isalnum():
                return token, len(text)
        return None

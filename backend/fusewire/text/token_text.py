"""The text of a single token, as log-probabilities have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

# Most vocabularies have a word or a letter among the first hundreds.
_LOOKED_INTO = 8192


class TokenText:
    """What a token adds to the text before it.

    Alone many decoders take a token for the first of a text, and its space away (SentencePiece's
    "▁the"). So it is decoded behind another, of which it is the rest.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        spelling: Callable[[int], str | None],
        spelled_bytes: Callable[[str], bytes | None],
    ) -> None:
        """`decode`: of ids to text. `spelling`: of the vocabulary. `spelled_bytes`: those that a
        spelling stands for, None where it is text."""
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
        """The bytes of a token that has no text of its own, as they are not whole characters; None
        of others."""
        spelled = self._spelled_bytes(self._spelling(token) or "")
        try:
            (spelled or b"").decode()
        except UnicodeDecodeError:
            return spelled
        return None

    def unseen(self, ids: Sequence[int], special: frozenset[int], text: str) -> int:
        """How many characters of the first tokens' texts `text` does not have, whose ids these are:
        special tokens that the tokenizer put there, and the space of a first word."""
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
        """A token with a text of its own, and how long that is. No byte of a character ("<0x41>"),
        which is read together with the next."""
        for token in range(_LOOKED_INTO):
            spelling = self._spelling(token)
            if not spelling or spelling.startswith("<"):
                continue
            text = self._decode([token])
            if text.isalnum():
                return token, len(text)
        return None

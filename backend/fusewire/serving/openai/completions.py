"""The format of /v1/completions: text, and log probabilities as parallel lists."""

from __future__ import annotations

import codecs
from collections import Counter, defaultdict
from functools import partial
from typing import Any

from fusewire.serving.openai.echo import Echo
from fusewire.serving.openai.generation import Piece, Token

# Computes text offsets: a character counts at the first of its tokens.
_UTF_8 = partial(codecs.getincrementaldecoder("utf-8"), "replace")


class CompletionForm:
    """Writes the choices of one answer."""

    prefix = "cmpl"
    whole_object = streamed_object = "text_completion"

    def __init__(self, echo: Echo | None = None) -> None:
        """`echo`: the prompts to put before the generated texts."""
        self._echo = echo
        self._begun: set[int] = set()  # choices whose prompt has been written
        self._offsets: Counter[int] = Counter()  # choice -> offset of its next token
        self._decoders: dict[int, codecs.IncrementalDecoder] = defaultdict(_UTF_8)

    def whole(self, piece: Piece) -> dict[str, Any]:
        text, tokens = piece.text, piece.tokens
        if self._echo is not None and piece.choice not in self._begun:
            self._begun.add(piece.choice)
            self._offsets[piece.choice] = -self._echo.unseen(piece)
            text = self._echo.text(piece) + text
            tokens = self._echo.tokens(piece) + tokens
        return {
            "index": piece.choice,
            "text": text,
            "logprobs": self._logprobs(piece.choice, tokens) if tokens else None,
            "finish_reason": piece.finish_reason,
        }

    streamed = whole

    def _logprobs(self, choice: int, tokens: list[Token]) -> dict[str, Any]:
        offsets = []
        decoder = self._decoders[choice]
        for token in tokens:
            if not 0x80 <= ord(token.spelled[:1] or b"\0") < 0xC0:  # ends a partial character
                self._offsets[choice] += len(decoder.decode(b"", final=True))
            offsets.append(max(self._offsets[choice], 0))
            self._offsets[choice] += len(decoder.decode(token.spelled))
        return {
            "tokens": [_text(token.spelled) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_by_text(token) for token in tokens],
            "text_offset": offsets,
        }


def _text(spelled: bytes) -> str:
    """Returns the text of bytes. Bytes that are not text are written as in OpenAI's API:
    "bytes:\\xf0\\x9f"."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + spelled.decode("utf-8", "backslashreplace")


def _by_text(token: Token) -> dict[str, float] | None:
    """Returns the log probabilities by text. Where several tokens have the same text (ids beyond
    the tokenizer's have none), the entry is that of the chosen token, otherwise of the
    likeliest."""
    if token.logprob is None:
        return None
    found = {_text(token.spelled): token.logprob}
    for spelled, logprob in token.likeliest:
        found.setdefault(_text(spelled), logprob)
    return found

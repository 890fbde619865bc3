"""The format of /v1/chat/completions: the assistant's message, as a whole or as deltas."""

from __future__ import annotations

from typing import Any

from fusewire.serving.openai.generation import Piece, Token

_ROLE = "assistant"


class ChatForm:
    """Writes the choices of one answer."""

    prefix = "chatcmpl"
    whole_object, streamed_object = "chat.completion", "chat.completion.chunk"

    def __init__(self) -> None:
        self._begun: set[int] = set()  # choices whose role has been sent

    def whole(self, piece: Piece) -> dict[str, Any]:
        message = {"role": _ROLE, "content": piece.text, "refusal": None}
        return self._choice(piece, message=message)

    def streamed(self, piece: Piece) -> dict[str, Any]:
        delta = {"content": piece.text}
        if piece.choice not in self._begun:
            self._begun.add(piece.choice)
            delta = {"role": _ROLE, **delta}
        return self._choice(piece, delta=delta)

    def _choice(self, piece: Piece, **said: Any) -> dict[str, Any]:
        content = [_entry(token.spelled, token.logprob, token) for token in piece.tokens]
        return {
            "index": piece.choice,
            **said,
            "logprobs": {"content": content, "refusal": None} if content else None,
            "finish_reason": piece.finish_reason,
        }


def _entry(spelled: bytes, logprob: float | None, token: Token | None = None) -> dict[str, Any]:
    # Bytes that are not text are written as in OpenAI's API: "\\xf0\\x9f".
    text = spelled.decode("utf-8", "backslashreplace")
    entry: dict[str, Any] = {"token": text, "logprob": logprob, "bytes": [*spelled]}
    if token is not None:
        entry["top_logprobs"] = [_entry(*each) for each in token.likeliest]
    return entry

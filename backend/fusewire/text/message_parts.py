"""The content of a chat message that is a list of parts, as OpenAI has them, as a text."""

from __future__ import annotations

from typing import Any

from fusewire.errors import InvalidInput, type_name


def text_of_parts(parts: list[Any], message: int) -> str:
    """A line for each part; InvalidInput for one that is no text. `message`: its place."""
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else type_name(part, "null")
        if kind != "text" or not isinstance(part.get("text"), str):
            got = f"a part of type {str(kind)[:40]!r} in message {message}"
            raise InvalidInput("messages", got, "parts of type text", "send text alone")
        texts.append(part["text"])
    return "\n".join(texts)

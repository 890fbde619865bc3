"""Converts the content of a chat message that is a list of parts, as in OpenAI's API, to a text."""

from __future__ import annotations

from typing import Any

from fusewire.errors import InvalidInput, type_name


def text_of_parts(parts: list[Any], message: int) -> str:
    """Returns a text with a line for each part. Raises InvalidInput for a part that is not text.
    `message`: the index of the message."""
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else type_name(part, "null")
        if kind != "text":
            got = f"a part of type {str(kind)[:40]!r} in message {message}"
            raise InvalidInput("messages", got, "parts of type text", "send text alone")
        text = part.get("text")
        if not isinstance(text, str):
            found = type_name(text, "null") if "text" in part else "none"
            wanted = "a string, as the part's type is text"
            raise InvalidInput("text", f"{found} in a part of message {message}", wanted, "add it")
        texts.append(text)
    return "\n".join(texts)

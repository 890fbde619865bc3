"""Checks form and size of a conversation's messages, as parsed from JSON, before a chat template
renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusewire.errors import InvalidInput, type_name
from fusewire.text.message_parts import text_of_parts

# Limits of a conversation: more tokens than any model can process.
MOST_MESSAGES = 4096
MOST_CHARACTERS = 1 << 22
MOST_NESTING = 16  # of a message's fields beside its text, such as tool calls


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """Returns the messages without null values, which templates do not expect, and with the parts
    of each content joined to one text. Raises InvalidInput."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        got = type_name(messages, "null")
        raise InvalidInput("messages", got, "a list", "send a conversation")
    if not 1 <= len(messages) <= MOST_MESSAGES:
        wanted = f"1..{MOST_MESSAGES} messages"
        remedy = "send a shorter conversation" if messages else "send at least one"
        raise InvalidInput("messages", f"{len(messages)}", wanted, remedy)
    size, plain = 0, []
    for index, message in enumerate(messages):
        where = f" in message {index}"
        if not isinstance(message, Mapping):
            got = f"{type_name(message, 'null')}{where}"
            raise InvalidInput("messages", got, "objects with role and content", "correct it")
        if isinstance(message.get("content"), list):
            message = {**message, "content": text_of_parts(message["content"], index)}
        for name in ("role", "content"):
            value = message.get(name, None if name == "content" else 0)
            if not isinstance(value, str) and not (name == "content" and value is None):
                got = f"{type_name(value, 'null') if name in message else 'none'}{where}"
                raise InvalidInput(name, got, "a string", "send text")
        if message.get("content") is None and not _may_be_silent(message):
            got = f"null{where}" if "content" in message else f"none{where}"
            wanted = "text, which only an assistant's message with tool_calls may lack"
            raise InvalidInput("content", got, wanted, "send text")
        size += json_size(message, where)
        if size > MOST_CHARACTERS:
            raise InvalidInput(
                "messages",
                f"over {MOST_CHARACTERS} characters",
                f"at most {MOST_CHARACTERS}",
                "send a shorter conversation",
            )
        plain.append({key: value for key, value in message.items() if value is not None})
    return plain


def _may_be_silent(message: Mapping[str, Any]) -> bool:
    calls = message.get("tool_calls") or message.get("function_call")
    return message["role"] == "assistant" and bool(calls)


def json_size(value: object, where: str, field: str = "messages", depth: int = 0) -> int:
    """Returns the number of characters and entries of plain JSON. Raises InvalidInput with `field`
    for other values."""
    if depth > MOST_NESTING:
        wanted = f"at most {MOST_NESTING} levels"
        raise InvalidInput(field, f"deeper nesting{where}", wanted, "flatten it")
    if isinstance(value, str):
        return 1 + len(value)
    if value is None or isinstance(value, (bool, int, float)):
        return 1
    if isinstance(value, Mapping):
        return 1 + sum(
            json_size(key, where, field, depth + 1) + json_size(item, where, field, depth + 1)
            for key, item in value.items()
        )
    if isinstance(value, list):
        return 1 + sum(json_size(item, where, field, depth + 1) for item in value)
    got = f"{type(value).__name__}{where}"
    raise InvalidInput(field, got, "JSON values", "send plain values")

"""What the bodies of all routes have in common: how they are read, and what they may leave unsaid.

Most of a body has the names of the model's own parameters, so it is passed on as it is and checked
by the model.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fusewire.errors import InvalidInput
from fusewire.serving.openai.errors import ApiError, of
from fusewire.tasks.bounded_json import read_object
from fusewire.tasks.chat_template import MOST_NESTING

# A conversation as long as a template takes, or two thousand texts to embed.
MOST_BODY_BYTES = 1 << 24
# Read within a millisecond, so at once: changing to a thread and back would take as long.
_SHORT_BYTES = 1 << 16
# Texts of one request that are embedded, or ranked.
MOST_TEXTS = 2048

# Accepted where it changes no answer: all that is only about the client, and the values that say
# "not that".
_ABOUT_THE_CLIENT = frozenset(
    ("user", "metadata", "request_id", "safety_identifier", "prompt_cache_key")
)
_SWITCHED_OFF: dict[str, tuple[Any, ...]] = {
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}


class BoundedRequest(Request):
    """Reads JSON as strictly as a model reads its parameters, and no more of it than it may."""

    async def body(self) -> bytes:
        chunks, size = [], 0
        async for chunk in self.stream():
            size += len(chunk)
            if size > MOST_BODY_BYTES:
                words = f"body: got over {MOST_BODY_BYTES} bytes, wanted no more"
                raise ApiError(413, f"{words}; send several requests", code="request_too_large")
            chunks.append(chunk)
        self._body = b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        read = functools.partial(read_object, "body", body, MOST_BODY_BYTES, MOST_NESTING)
        try:
            return read() if len(body) < _SHORT_BYTES else await asyncio.to_thread(read)
        except InvalidInput as error:
            raise of(error) from None


class Nullable(BaseModel):
    """Where a null is as good as nothing, as OpenAI has it."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}


class Body(Nullable):
    """The body of a request to one model."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str = Field(description="One of the names in /v1/models.")

    def given(self) -> dict[str, Any]:
        """What the endpoint does not read itself, without what changes nothing."""
        return {
            name: value
            for name, value in (self.model_extra or {}).items()
            if name not in _ABOUT_THE_CLIENT and value not in _SWITCHED_OFF.get(name, ())
        }


def texts_or_ids(field: str, value: Any, most: int) -> list[str] | list[list[int]]:
    """A prompt, or a list of them, each a text or token ids, as a list."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and value:
        if all(type(one) is int for one in value):
            value = [value]
        check_count(field, value, most)
        if all(isinstance(one, str) for one in value):
            for text in value:
                check_text(field, text)
            return value
        if all(isinstance(one, list) and all(map(_is_id, one)) for one in value):
            return value
    wanted = "a text, a list of token ids, or a list of either"
    raise InvalidInput(field, repr(value)[:80], wanted, "correct it")


def check_count(field: str, entries: list[Any], most: int) -> None:
    """InvalidInput for a list that is too long."""
    if len(entries) > most:
        got = f"{len(entries)} entries"
        raise InvalidInput(field, got, f"at most {most}", "send several requests")


def check_text(field: str, text: str) -> None:
    """InvalidInput for what UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"a lone surrogate at {error.start}"
        raise InvalidInput(field, got, "text", "send valid Unicode") from None


def _is_id(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63

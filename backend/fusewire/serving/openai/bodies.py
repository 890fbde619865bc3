"""What the bodies of all routes have in common: what they may leave out, and their checks.

Most of a body has the names of the model's own parameters, so it is passed on as it is and checked
by the model. What may be long is checked by validators, which do not run in the event loop then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fusewire.errors import InvalidInput
from fusewire.serving.openai.errors import shown
from fusewire.text.bounded_json import MOST_BYTES

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
    raise InvalidInput(field, shown(value), wanted, "correct it")


def check_size(parameters: Mapping[str, Any]) -> None:
    """InvalidInput for more than a model reads: they are sent with each prompt, and with each part
    of many texts."""
    sizes = {name: len(json.dumps(value)) for name, value in parameters.items()}
    if sum(sizes.values()) > MOST_BYTES:
        longest = max(sizes, key=sizes.__getitem__)
        got = f"{sizes[longest]} characters"
        wanted = f"at most {MOST_BYTES} in all parameters"
        raise InvalidInput(longest, got, wanted, "shorten it")


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

"""The common part of the bodies of all routes: optional fields, and checks.

Most fields of a body are named like the model's own parameters, so they are passed on unchanged and
checked by the model. Long values are checked by validators, which then run outside the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fusewire.errors import InvalidInput
from fusewire.serving.openai.errors import shown
from fusewire.text.bounded_json import MOST_BYTES

# Maximum number of texts in one request for embeddings or ranking.
MOST_TEXTS = 2048

# Fields that are accepted because they do not change the answer: those about the client only, and
# values that disable a feature.
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
    """A null value counts as absent, as in OpenAI's API."""

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
        """Returns the fields that the endpoint does not read itself, without those that have no
        effect."""
        return {
            name: value
            for name, value in (self.model_extra or {}).items()
            if name not in _ABOUT_THE_CLIENT and value not in _SWITCHED_OFF.get(name, ())
        }


def texts_or_ids(field: str, value: Any, most: int) -> list[str] | list[list[int]]:
    """Returns the list of prompts: `value` is a prompt or a list of prompts, each a text or token
    ids."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and value:
        if all(type(one) is int for one in value):
            value = [value]
        check_count(field, value, most)
        if all(isinstance(one, str) for one in value):
            for index, text in enumerate(value):
                check_text(entry(field, index, value), text)
            return value
        if all(isinstance(one, list) and all(map(_is_id, one)) for one in value):
            return value
    wanted = "a text, a list of token ids, or a list of either"
    raise InvalidInput(field, shown(value), wanted, "correct it")


def check_size(parameters: Mapping[str, Any]) -> None:
    """Raises InvalidInput for parameters that are larger than a model accepts. They are sent with
    each prompt, and with each part of many texts."""
    sizes = {name: len(json.dumps(value)) for name, value in parameters.items()}
    if sum(sizes.values()) > MOST_BYTES:
        longest = max(sizes, key=sizes.__getitem__)
        got = f"{sizes[longest]} characters"
        wanted = f"at most {MOST_BYTES} in all parameters"
        raise InvalidInput(longest, got, wanted, "shorten it")


def check_count(field: str, entries: list[Any], most: int) -> None:
    """Raises InvalidInput for a list that is too long."""
    if len(entries) > most:
        got = f"{len(entries)} entries"
        raise InvalidInput(field, got, f"at most {most}", "send several requests")


def entry(field: str, index: int, entries: Sequence[Any]) -> str:
    """Returns the name of an entry for errors; that of the field where it is the only one."""
    return f"{field}[{index}]" if len(entries) > 1 else field


def check_text(field: str, text: str, where: str = "") -> None:
    """Raises InvalidInput for text that UTF-8 cannot encode. `where`: added to its place."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"a lone surrogate at {error.start}{where}"
        raise InvalidInput(field, got, "text", "send valid Unicode") from None


def _is_id(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63

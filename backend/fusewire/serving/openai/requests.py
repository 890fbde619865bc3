"""What OpenAI's clients send: the few fields the door reads itself, and what it passes on.

The engine's parameters have OpenAI's names, or vLLM's where OpenAI has none, so most of a body is
passed on as it is and checked by the model.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fusewire.errors import InvalidInput
from fusewire.serving.openai.errors import ApiError, of
from fusewire.tasks.bounded_json import read_object
from fusewire.tasks.chat_template import MOST_NESTING
from fusewire.tasks.generation_checks import ALIASES
from fusewire.tasks.generation_parameters import MOST_SEQUENCES, GenerationParameters

# A conversation as long as a template takes, or two thousand texts to embed.
MOST_BODY_BYTES = 1 << 24
# Read within a millisecond, so at once: changing to a thread and back would take as long.
_SHORT_BYTES = 1 << 16
# Prompts of one request for completions, each a request to the model; texts of one for embeddings.
MOST_PROMPTS = 128
MOST_TEXTS = 2048
# As OpenAI has it for completions; a chat's answer may be as long as fits.
_COMPLETION_TOKENS = 16

_PARAMETERS = (*GenerationParameters.model_fields, *ALIASES)
# Accepted where it changes no answer: all that is only about the client, and the values that say
# "not that".
_ABOUT_THE_CLIENT = frozenset(("user", "metadata", "safety_identifier", "prompt_cache_key"))
_SWITCHED_OFF: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
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
                words = f"body: got over {MOST_BODY_BYTES} bytes, wanted at most as many"
                raise ApiError(413, f"{words}; send several requests")
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


class _Nullable(BaseModel):
    """Where a null is as good as nothing, as OpenAI has it."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}


class StreamOptions(_Nullable):
    """How a stream is written."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False  # padding against eavesdroppers, which a server may leave out


class _Body(_Nullable):
    model_config = ConfigDict(strict=True, extra="allow")

    model: str

    def given(self) -> dict[str, Any]:
        """What the door does not read itself, without what says nothing."""
        return {
            name: value
            for name, value in (self.model_extra or {}).items()
            if name not in _ABOUT_THE_CLIENT and value not in _SWITCHED_OFF.get(name, ())
        }


class _Generating(_Body):
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=MOST_SEQUENCES)

    def parameters(self, draws: bool | None) -> dict[str, Any]:
        """The model's parameters. As OpenAI has it, tokens are drawn, unless request or folder
        (`draws`) say otherwise. InvalidInput names a parameter that no model has."""
        if self.stream_options is not None and not self.stream:
            raise InvalidInput("stream_options", "it", "it with stream alone", "remove it")
        given = self.given()
        for name, value in given.items():
            if name not in _PARAMETERS:
                wanted = f"a parameter that is supported ({', '.join(_PARAMETERS)})"
                raise InvalidInput(name, repr(value)[:80], wanted, "remove it")
        given["n"] = self.n
        if draws is None:
            given.setdefault("do_sample", True)
        return given


class CompletionRequest(_Generating):
    """Of /v1/completions."""

    prompt: Any

    def parameters(self, draws: bool | None) -> dict[str, Any]:
        given = super().parameters(draws)
        if "max_new_tokens" not in given:
            given.setdefault("max_tokens", _COMPLETION_TOKENS)
        return given


class ChatRequest(_Generating):
    """Of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None

    def parameters(self, draws: bool | None) -> dict[str, Any]:
        given = super().parameters(draws)
        if self.max_completion_tokens is not None:
            if {"max_tokens", "max_new_tokens"} & given.keys():
                got = "max_tokens beside it"
                raise InvalidInput("max_completion_tokens", got, "one of them", "drop one")
            given["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            given["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs is not None:
            wanted = "it with logprobs alone"
            raise InvalidInput("top_logprobs", self.top_logprobs, wanted, "set logprobs")
        return given

    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages with their contents as one text each."""
        return [
            {**message, "content": _text(index, message["content"])}
            if isinstance(message.get("content"), list)
            else message
            for index, message in enumerate(self.messages)
        ]


class EmbeddingRequest(_Body):
    """Of /v1/embeddings."""

    input: Any
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


def texts_or_ids(field: str, value: Any, most: int) -> list[str] | list[list[int]]:
    """A prompt, or a list of them, each a text or token ids, as a list."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and value:
        if all(type(one) is int for one in value):
            value = [value]
        if len(value) > most:
            got = f"{len(value)} entries"
            raise InvalidInput(field, got, f"at most {most}", "send several requests")
        if all(isinstance(one, str) for one in value):
            for text in value:
                _check_text(field, text)
            return value
        if all(isinstance(one, list) and all(map(_is_id, one)) for one in value):
            return value
    wanted = "a text, a list of token ids, or a list of either"
    raise InvalidInput(field, repr(value)[:80], wanted, "correct it")


def names_used(body: _Generating, prompt: str) -> dict[str, str]:
    """The model's names -> those the client used. `prompt`: the field that the prompt came in."""
    limits = ("max_completion_tokens", "max_tokens", "max_new_tokens")
    used = next((name for name in limits if name in body.model_fields_set), "max_tokens")
    chat = {"logprobs": "top_logprobs"} if isinstance(body, ChatRequest) else {}
    prompts = dict.fromkeys(("text_input", "input_ids"), prompt)
    return {**prompts, **dict.fromkeys(limits, used), **chat, "sampling_parameters": "body"}


def _check_text(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"half a surrogate pair at {error.start}"
        raise InvalidInput(field, got, "text", "send valid Unicode") from None


def _is_id(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _text(message: int, parts: list[Any]) -> str:
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            got = f"a part of type {str(kind)[:40]!r} in message {message}"
            raise InvalidInput("messages", got, "parts of type text", "send text alone")
        texts.append(part["text"])
    return "\n".join(texts)

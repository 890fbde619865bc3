"""The bodies of /v1/completions and /v1/chat/completions.

The engine's parameters have OpenAI's names, or vLLM's where OpenAI has none.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from fusewire.errors import InvalidInput
from fusewire.generation.answer_parameters import MOST_LOGPROBS, MOST_SEQUENCES
from fusewire.generation.no_effect import without_no_effect
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.spelling import ALIASES, BEAM_SEARCH, DEFAULT_LENGTH
from fusewire.serving.openai.bodies import Body, Nullable, check_size, check_text, texts_or_ids
from fusewire.serving.openai.errors import shown
from fusewire.text.conversation import MOST_MESSAGES
from fusewire.text.message_parts import text_of_parts
from fusewire.text.written import written_flag, written_real, written_whole

# Maximum number of prompts in one request for completions. Each is a request to the model.
MOST_PROMPTS = 128
# OpenAI's default for completions. An answer in a chat may be as long as fits.
_COMPLETION_TOKENS = 16

(_ALIAS_OF_N,) = (alias for alias, name in ALIASES.items() if name == "n")

# Answers of this endpoint have no field for it.
_ALIGNMENT = "alignment"
_OWN = tuple(name for name in GenerationParameters.model_fields if name != _ALIGNMENT)
_PARAMETERS = (*_OWN, *ALIASES, BEAM_SEARCH)
_TRUNCATE = (
    "Keep this many of a prompt's tokens, the last ones; -1: as many as leave room for the answer. "
    "Default: a prompt that is too long is refused."
)


def _with_parameters(schema: dict[str, Any]) -> None:
    """Adds the descriptions of the model's parameters, which are passed on."""
    own = GenerationParameters.model_json_schema()["properties"]
    schema["properties"] = {**{name: own[name] for name in _OWN}, **schema["properties"]}


def _plain(messages: list[Any]) -> list[dict[str, Any]]:
    """Returns the messages with each content as one text."""
    if len(messages) > MOST_MESSAGES:
        got, wanted = f"{len(messages)}", f"1..{MOST_MESSAGES} messages"
        raise InvalidInput("messages", got, wanted, "send a shorter conversation")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            got, wanted = f"{shown(message)} in message {index}", "objects with role and content"
            raise InvalidInput("messages", got, wanted, "correct it")
    plain = [
        {**message, "content": text_of_parts(message["content"], index)}
        if isinstance(message.get("content"), list)
        else message
        for index, message in enumerate(messages)
    ]
    for index, message in enumerate(plain):
        if isinstance(content := message.get("content"), str):
            check_text("content", content, f" in message {index}")
    return plain


Messages = Annotated[list[Any], AfterValidator(_plain)]


def _prompts(value: Any) -> list[str] | list[list[int]]:
    return texts_or_ids("prompt", value, MOST_PROMPTS)


class StreamOptions(Nullable):
    """The format of a stream."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool = Field(default=False, description="A last event with the usage.")
    continuous_usage_stats: bool = Field(
        default=False, description="With include_usage: the usage so far in every event."
    )
    include_obfuscation: bool = False  # padding against traffic analysis, optional for servers


class GenerationBody(Body):
    """The common fields of both bodies."""

    model_config = ConfigDict(json_schema_extra=_with_parameters)

    stream: bool = Field(default=False, description="Send the text as server-sent events.")
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=MOST_SEQUENCES, description="Answers to each prompt.")
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, description=_TRUNCATE)

    prompt_logprobs: int | None = Field(
        default=None, ge=0, le=MOST_LOGPROBS, description="Log-probabilities of the prompt's "
        "tokens: each choice has a list of them. Not for streams."
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _with_n(cls, values: Any) -> Any:
        """Takes `n` under its other name."""
        if not isinstance(values, dict) or values.get("n") is not None or _ALIAS_OF_N not in values:
            return values
        return {**values, "n": values[_ALIAS_OF_N], _ALIAS_OF_N: None}

    def parameters(self, draws: bool | None) -> dict[str, Any]:
        """Returns the model's parameters. As in OpenAI's API tokens are sampled, unless the request
        (which may ask for beam search) or the folder (`draws`) says otherwise. Raises InvalidInput
        for a parameter that no model has."""
        if self.stream_options is not None and not self.stream:
            raise InvalidInput("stream_options", "it", "it only with stream", "remove it")
        given = without_no_effect(self.given())
        aligned = given.pop(_ALIGNMENT, False)
        if written_flag(aligned) is not False:
            wanted = "none, which an answer of this endpoint has no field for"
            remedy = "remove it, or ask the KServe v2 endpoint with return_alignment"
            raise InvalidInput(_ALIGNMENT, shown(aligned), wanted, remedy)
        for name, value in given.items():
            if name not in _PARAMETERS:
                near = get_close_matches(name[:64], _PARAMETERS) or ["those of /openapi.json"]
                wanted = f"a supported parameter: {' or '.join(near)}"
                raise InvalidInput(name, shown(value), wanted, "remove it")
        check_size(given)
        given["n"] = self.n
        if self.prompt_logprobs is not None:
            if self.stream:
                wanted = "none with stream"
                raise InvalidInput("prompt_logprobs", self.prompt_logprobs, wanted, "drop one")
            given["prompt_logprobs"] = self.prompt_logprobs
        beams = written_flag(given.get(BEAM_SEARCH, False)) is True
        if draws is None and not beams and written_real(given.get("num_beams", 1)) == 1:
            given.setdefault("do_sample", True)
        return given

    def names_used(self, prompt: str) -> dict[str, str]:
        """Returns the model's names -> those in the client's request. `prompt`: the field that has
        the prompt."""
        limits = ("max_completion_tokens", "max_tokens", "max_new_tokens")
        used = next((name for name in limits if name in self.model_fields_set), "max_tokens")
        prompts = dict.fromkeys(("text_input", "input_ids"), prompt)
        return {**prompts, **dict.fromkeys(limits, used), "sampling_parameters": "body"}


class CompletionRequest(GenerationBody):
    """The body of /v1/completions."""

    # Validated to a list of texts, or of lists of ids.
    prompt: Annotated[Any, AfterValidator(_prompts)] = Field(
        description="A text, a list of token ids, or a list of either."
    )
    echo: bool = Field(
        default=False, description="Put the prompt before the text, and its log-probabilities "
        "before the others; max_tokens may be 0 then."
    )  # fmt: skip

    def parameters(self, draws: bool | None) -> dict[str, Any]:
        given = super().parameters(draws)
        if not {"max_tokens", "max_new_tokens"} & given.keys():
            given[DEFAULT_LENGTH] = _COMPLETION_TOKENS
        if self.echo:
            if "prompt_logprobs" in given:
                got, wanted = "it together with echo", "one of them"
                raise InvalidInput("prompt_logprobs", got, wanted, "set echo and logprobs")
            # Without new tokens these are the model's only output.
            most = given.get("max_tokens", given.get("max_new_tokens"))
            if "logprobs" in given or written_whole(most) == 0:
                given["prompt_logprobs"] = given.get("logprobs", 0)
        return given

    def names_used(self, prompt: str) -> dict[str, str]:
        scores = {"prompt_logprobs": "logprobs"} if self.echo else {}
        return {**super().names_used(prompt), **scores}


class ChatRequest(GenerationBody):
    """The body of /v1/chat/completions."""

    messages: Messages = Field(
        description="Objects with role and content, a text or parts of type text."
    )
    logprobs: bool | None = Field(
        default=None, description="Return log-probabilities of the tokens."
    )
    top_logprobs: int | None = Field(
        default=None, description="With logprobs: number of likeliest tokens at each position."
    )
    max_completion_tokens: int | None = Field(default=None, description="As max_tokens.")
    add_generation_prompt: bool = Field(
        default=True, description="End the prompt with the beginning of the assistant's answer."
    )
    add_special_tokens: bool = Field(
        default=False, description="Put special tokens around the prompt beside the template's."
    )
    continue_final_message: bool = Field(default=False, description="Only false is supported.")
    chat_template_kwargs: dict[str, Any] = Field(
        default={}, description="Further variables that the chat template reads."
    )

    def parameters(self, draws: bool | None) -> dict[str, Any]:
        given = super().parameters(draws)
        if self.continue_final_message:
            raise InvalidInput("continue_final_message", "true", "false", "remove it")
        if self.max_completion_tokens is not None:
            if {"max_tokens", "max_new_tokens"} & given.keys():
                got = "it together with max_tokens"
                raise InvalidInput("max_completion_tokens", got, "one of them", "drop one")
            given["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            given["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs is not None:
            wanted = "it only with logprobs"
            raise InvalidInput("top_logprobs", self.top_logprobs, wanted, "set logprobs")
        return given

    def names_used(self, prompt: str) -> dict[str, str]:
        return {**super().names_used(prompt), "logprobs": "top_logprobs"}

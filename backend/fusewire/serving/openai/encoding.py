"""The common part of requests for embeddings and ranking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from fusewire.errors import InvalidInput
from fusewire.serving.openai.bodies import Body, check_size
from fusewire.serving.openai.errors import shown
from fusewire.serving.openai.sender import TENANT_HEADER
from fusewire.serving.openai.served import Encoder, ImageEncoder
from fusewire.tasks.parameters import request_parameters


class EncoderBody(Body):
    """The common fields of their bodies."""

    truncate_prompt_tokens: int | None = Field(
        default=None,
        ge=-1,
        description="Truncate a text, or a query and its document together, to this many tokens; "
        "-1: to the model's limit.",
    )
    priority: int = Field(
        default=0,
        ge=-1000,
        le=1000,
        description="Among waiting requests, lower numbers run first, as in vLLM.",
    )
    timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        le=86400,
        description="Time limit of the answer: a request that cannot be computed within it is "
        "refused at once. Default: the model's slo_ms.",
    )

    def names_used(self) -> dict[str, str]:
        """Returns the model's names -> those in the client's request."""
        used = {"request_priority": "priority", "tenant": TENANT_HEADER}
        if self.truncate_prompt_tokens is not None:
            used["max_length"] = "truncate_prompt_tokens"
        return used

    def options(self, sender: Mapping[str, str]) -> dict[str, Any]:
        """Returns the arguments of every client call beside the model's parameters. `sender`: the
        request parameters that identify the sender."""
        options: dict[str, Any] = dict(sender)
        if self.priority:
            options["request_priority"] = self.priority
        if self.timeout_seconds is not None:
            options["timeout_s"] = self.timeout_seconds
        return options


def encoder_parameters(
    model: Encoder | ImageEncoder, given: Mapping[str, Any], truncate_prompt_tokens: int | None
) -> dict[str, Any]:
    """Returns the model's parameters. Raises InvalidInput for one that it does not have."""
    known = request_parameters(model.task, images=isinstance(model, ImageEncoder))
    for name, value in given.items():
        if name not in known:  # including arguments of our client
            wanted = f"one of the parameters of {model.task} ({', '.join(known)})"
            raise InvalidInput(name, shown(value), wanted, "remove it")
    check_size(given)
    parameters = dict(given)
    if truncate_prompt_tokens is None:
        return parameters
    if {"truncate", "max_length"} & given.keys():
        got, wanted = (
            "truncate_prompt_tokens together with truncate or max_length",
            "only one of them",
        )
        raise InvalidInput("truncate_prompt_tokens", got, wanted, "drop one")
    parameters["truncate"] = True
    if truncate_prompt_tokens != -1:
        if not 1 <= truncate_prompt_tokens <= model.max_length:
            wanted = f"1..{model.max_length}, or -1 for the model's limit"
            raise InvalidInput(
                "truncate_prompt_tokens", truncate_prompt_tokens, wanted, "correct it"
            )
        parameters["max_length"] = truncate_prompt_tokens
    return parameters


def usage(tokens: int) -> dict[str, int]:
    """Returns the usage of a request that generates nothing."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}

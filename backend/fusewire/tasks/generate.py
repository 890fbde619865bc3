"""A request for generated text: what its tensors say, checked and complete.

The contract is vllm_backend's, with token ids as a second way to give a prompt. Parameters come as
JSON in `sampling_parameters`, or one by one as the request's own (`"parameters"` over HTTP).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput
from fusewire.tasks.contract import GENERATE, RETURNED, contract
from fusewire.tasks.generation_checks import GenerationLimits
from fusewire.tasks.generation_parameters import FIELD, GenerationParameters
from fusewire.tasks.inputs import decoded
from fusewire.tasks.parameters import Value

_EXCLUDE = "exclude_input_in_output"
_INPUTS = tuple(tensor.name for tensor in contract(GENERATE)[0])


@dataclass(frozen=True)
class GenerateRequest:
    """One prompt and how it is to be answered."""

    prompt: str | list[int]
    parameters: GenerationParameters
    stream: bool  # a response a step, else one for all
    prefix: str  # before each text: the prompt, where it is wanted in the output
    returned: frozenset[str]  # outputs beside text_output


def read(
    inputs: Mapping[str, NDArray[Any]],
    parameters: Mapping[str, Value],
    limits: GenerationLimits,
    defaults: Mapping[str, Any] | None = None,
) -> GenerateRequest:
    """A request from its tensors and its parameters; InvalidInput names what is wrong.

    `limits`, `defaults`: as GenerationParameters.parse takes them.
    """
    for name in inputs:
        if name not in _INPUTS:
            raise InvalidInput(name, "an unknown tensor", f"one of {', '.join(_INPUTS)}", "drop it")
    prompt = _prompt(inputs)
    stream = _flag(inputs, "stream", False)
    # The prompt leads the text unless it is streamed: so vllm_backend has it.
    exclude = _flag(inputs, _EXCLUDE, stream or not isinstance(prompt, str))
    if not exclude and (stream or not isinstance(prompt, str)):
        wanted = "true where the text is streamed" if stream else "true where the prompt is ids"
        raise InvalidInput(_EXCLUDE, "false", wanted, "leave it out, or send true")
    text = _parameters(inputs, parameters)
    return GenerateRequest(
        prompt,
        GenerationParameters.parse(text, limits, defaults),
        stream,
        "" if exclude or not isinstance(prompt, str) else prompt,
        frozenset(name for name in RETURNED if _flag(inputs, f"return_{name}", False)),
    )


def _prompt(inputs: Mapping[str, NDArray[Any]]) -> str | list[int]:
    given = [name for name in ("text_input", "input_ids") if name in inputs]
    if len(given) != 1:
        got = "both" if given else "neither"
        raise InvalidInput("text_input", f"{got} of it and input_ids", "one of them", "send one")
    if "text_input" in inputs:
        return decoded("text_input", _single(inputs, "text_input"), "")
    ids = inputs["input_ids"]
    if ids.dtype != np.int64 or ids.ndim != 1:
        got = f"{ids.dtype} of shape {list(ids.shape)}"
        raise InvalidInput("input_ids", got, "int64 of shape [length]", "send one prompt's ids")
    return [int(token) for token in ids]


def _parameters(inputs: Mapping[str, NDArray[Any]], parameters: Mapping[str, Value]) -> bytes:
    if FIELD not in inputs:
        return json.dumps(parameters).encode()
    if parameters:
        got = "parameters of the request beside it"
        raise InvalidInput(FIELD, got, "all of them in one place", "send either")
    return decoded(FIELD, _single(inputs, FIELD), "").encode()


def _flag(inputs: Mapping[str, NDArray[Any]], name: str, default: bool) -> bool:
    return bool(_single(inputs, name)) if name in inputs else default


def _single(inputs: Mapping[str, NDArray[Any]], name: str) -> Any:
    array = inputs[name]
    if array.size != 1:
        raise InvalidInput(name, f"shape {list(array.shape)}", "shape [1]", "send one value")
    return array.reshape(-1)[0]

"""A request for generated text: its tensors are checked and read completely.

The contract is that of vllm_backend; token ids and chat messages are further forms of the prompt.
For an encoder-decoder model the prompt is its source, which is not part of the output. Parameters
come as JSON in `sampling_parameters`, as parameters of the request (`"parameters"` over HTTP), or
both, in which case the tensor takes precedence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput
from fusewire.generation.chat import FIELD as MESSAGES
from fusewire.generation.chat import Chat, read_messages
from fusewire.generation.parameter_reader import LONGEST_KEPT, MOST_KEPT, ParameterReader
from fusewire.generation.parameters import FIELD, GenerationParameters
from fusewire.generation.request import GenerationRequest
from fusewire.generation.spelling import canonical
from fusewire.tasks.contract import GENERATE, RETURNED, contract
from fusewire.tasks.inputs import decoded
from fusewire.tasks.parameters import Value
from fusewire.text.bounded_json import read_object
from fusewire.text.written import written_flag

_EXCLUDE = "exclude_input_in_output"
_INPUTS = tuple(tensor.name for tensor in contract(GENERATE)[0])
_PROMPTS = ("text_input", "input_ids", MESSAGES)
_Said = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class GenerateRequest(GenerationRequest):
    """A generation request and how it is answered. `prompt_field`: the input that has the
    prompt."""

    stream: bool = False  # a response per step, otherwise one response
    prefix: str = ""  # of each text: the prompt, where it is part of the output
    returned: frozenset[str] = frozenset()  # outputs beside text_output


def read(
    inputs: Mapping[str, NDArray[Any]],
    parameters: Mapping[str, Value],
    reader: ParameterReader,
    chat: Chat | None = None,
) -> GenerateRequest:
    """Returns the request of these tensors and parameters. Raises InvalidInput that names what is
    wrong.

    `reader` reads the parameters for the model. `chat` is for `messages`. The prompt itself is
    checked when it is tokenised, by `read_prompt`.
    """
    for name in inputs:
        if name not in _INPUTS:
            raise InvalidInput(name, "an unknown tensor", f"one of {', '.join(_INPUTS)}", "drop it")
    values = sent_parameters(inputs, parameters)
    field = _prompt_field(inputs)
    prompt = _prompt(field, inputs, values, chat)
    stream = flag(inputs, "stream", False)
    asked = reader.read(values)
    # As in vllm_backend the output begins with the prompt, unless it is streamed.
    alone = (
        "where the text is streamed"
        if stream
        else "without text_input"
        if not isinstance(prompt, str)
        else "for an encoder-decoder model, whose text does not go on from its input"
        if reader.limits.source is not None
        else ""
    )
    exclude = flag(inputs, _EXCLUDE, bool(alone))
    if not exclude and alone:
        raise InvalidInput(_EXCLUDE, "false", f"true {alone}", "leave it out, or send true")
    wanted = returned(inputs, RETURNED)
    if asked.alignment and "alignment" not in wanted:  # it has a cost
        asked = asked.model_copy(update={"alignment": False})
    return GenerateRequest(
        prompt,
        asked,
        field,
        stream,
        prompt if isinstance(prompt, str) and not exclude else "",
        wanted,
        tells=_tells(stream, asked),
    )


class RequestReader:
    """`read` for one model, with a cache: inputs and parameters beside the prompt are read once for
    all requests in which they are equal, as most clients send the same with every request.
    Thread-safe."""

    def __init__(self, reader: ParameterReader, chat: Chat) -> None:
        self._reader = reader
        self._chat = chat
        # Key of the tensors without the prompt -> a request with these tensors, without its prompt.
        self._known: dict[_Said, GenerateRequest] = {}

    def read(
        self, inputs: Mapping[str, NDArray[Any]], parameters: Mapping[str, Value]
    ) -> GenerateRequest:
        """See `read`."""
        said = None if parameters or MESSAGES in inputs else _said(inputs)
        known = self._known.get(said) if said else None
        if known is not None:
            prompt = _prompt(known.prompt_field, inputs, {}, None)
            prefix = prompt if known.prefix and isinstance(prompt, str) else ""
            return replace(known, prompt=prompt, prefix=prefix)
        found = read(inputs, parameters, self._reader, self._chat)
        if said and found.prompt:  # an empty prompt does not show whether the output includes it
            if len(self._known) >= MOST_KEPT:
                self._known = {}
            self._known[said] = replace(found, prompt="", prefix=found.prefix[:1])
        return found


def _said(inputs: Mapping[str, NDArray[Any]]) -> _Said | None:
    """Returns a hashable key of all inputs beside the prompt, or None where they are too large to
    cache, or invalid."""
    try:
        if FIELD in inputs and len(inputs[FIELD].item()) > LONGEST_KEPT:
            return None
        said = [
            (name, None if name in _PROMPTS else array.item()) for name, array in inputs.items()
        ]
        hash(found := tuple(said))
    except (TypeError, ValueError):  # no value, or several
        return None
    return found


def _tells(stream: bool, asked: GenerationParameters) -> Literal["tokens", "asked", "text"]:
    # The certain tokens of a search show when its first token came; several texts advance together.
    if asked.searches or (stream and asked.answers > 1):
        return "tokens"
    return "asked" if stream else "text"


def returned(inputs: Mapping[str, NDArray[Any]], names: Iterable[str]) -> frozenset[str]:
    """Returns the outputs among `names` that a request asks for."""
    return frozenset([name for name in names if flag(inputs, f"return_{name}", False)])


def _prompt_field(inputs: Mapping[str, NDArray[Any]]) -> str:
    given = [name for name in _PROMPTS if name in inputs]
    if len(given) != 1:
        got = " and ".join(given) or "no prompt"
        wanted = f"one of {', '.join(_PROMPTS)}"
        raise InvalidInput(given[0] if given else _PROMPTS[0], got, wanted, "send one")
    return given[0]


def _prompt(
    field: str, inputs: Mapping[str, NDArray[Any]], values: dict[str, Any], chat: Chat | None
) -> str | list[int]:
    """Returns the prompt: a text, or ids. For messages it removes the parameters of the chat
    template from `values`."""
    if field == "text_input":
        return decoded("text_input", single(inputs, "text_input"))
    if field == MESSAGES:
        assert chat is not None
        text = single(inputs, MESSAGES)
        return chat.prompt(
            read_messages(text.encode() if isinstance(text, str) else text),
            add_generation_prompt=_template_flag(values, "add_generation_prompt", True),
            add_special_tokens=_template_flag(values, "add_special_tokens", False),
            chat_template_kwargs=values.pop("chat_template_kwargs", None),
        )
    ids = inputs["input_ids"]
    if ids.dtype != np.int64 or ids.ndim != 1:
        got = f"{ids.dtype} of shape {list(ids.shape)}"
        raise InvalidInput("input_ids", got, "int64 of shape [length]", "send one prompt's ids")
    found: list[int] = ids.tolist()
    return found


def sent_parameters(
    inputs: Mapping[str, NDArray[Any]], parameters: Mapping[str, Value]
) -> dict[str, Any]:
    """Returns the parameters of the tensor, and those of the request that the tensor does not have.
    A null in the tensor counts as absent."""
    own = read_object("parameters", json.dumps(parameters).encode()) if parameters else {}
    if FIELD not in inputs:
        return own
    text = decoded(FIELD, single(inputs, FIELD))
    values = {**(_kept(text) if len(text) <= LONGEST_KEPT else _given(text))}
    if not own:
        return values
    named = {canonical(name) for name in values}
    return {**{n: v for n, v in own.items() if canonical(n) not in named}, **values}


def _given(text: str) -> dict[str, Any]:
    given = read_object(FIELD, text.encode())
    return {name: value for name, value in given.items() if value is not None}


_kept = lru_cache(MOST_KEPT)(_given)  # most clients send the same with every request


def _template_flag(values: dict[str, Any], name: str, default: bool) -> Any:
    return written_flag(values.pop(name, default))


def flag(inputs: Mapping[str, NDArray[Any]], name: str, default: bool) -> bool:
    """Returns the flag in an input, or `default` without it. Raises InvalidInput unless it is one
    value."""
    return bool(single(inputs, name)) if name in inputs else default


def single(inputs: Mapping[str, NDArray[Any]], name: str) -> Any:
    """Returns the value of an input. Raises InvalidInput unless it is one value."""
    array = inputs[name]
    if array.size != 1:
        raise InvalidInput(name, f"shape {list(array.shape)}", "shape [1]", "send one value")
    return array.reshape(-1)[0]

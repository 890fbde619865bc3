"""The methods of both clients for generated texts, as plans without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .calls import Infer, Plan
from .errors import InvalidArgument, ServerError
from .pieces import TEXT, Asked, pieces
from .plans import Arrays, Settings, answers_of, model_for
from .prompts import Ids, Messages, Prompts, json_text, messages_input, prompt_inputs

_N_OF_TRANSFORMERS = "num_return_sequences"


class Streaming(NamedTuple):
    """A call whose responses the client yields as they arrive."""

    call: Infer
    asked: Asked

    def pieces(self, outputs: Arrays) -> list[Any]:
        """Returns the pieces of one response: texts, or `Generated` where `details` were
        requested."""
        found = pieces(outputs, self.asked)
        return [each if self.asked.details else each.text for each in found]


def generate(
    settings: Settings,
    /,
    prompt: Prompts = None,
    *,
    ids: Ids = None,
    details: bool = False,
    stream: bool = False,
    max_new_tokens: int | None = None,
    n: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    logprobs: int | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Any,
) -> Plan[Any]:
    """Generates text after a prompt, or after each prompt of a list.

    Args:
        prompt: A text, or a list of them; those of a list run concurrently, answered in order.
        ids: The token ids of one prompt instead.
        details: Return `Generated` (text, finish_reason, usage, logprobs, score) instead of texts.
        stream: Return an iterator over the pieces of one prompt as they arrive (asyncio:
            `async for piece in await …`). Leaving it cancels the rest.
        max_new_tokens: Maximum number of tokens to generate. Default: as many as fit.
        n: Number of texts for each prompt, returned as a list; more than 1 only with sampling or
            num_beams.
        temperature: Turns sampling on, as top_p and top_k do, unless do_sample=False is given.
        top_p: Sample from the smallest set of tokens with this probability.
        top_k: Sample from the k likeliest tokens.
        stop: One or more strings that end the text and are not returned.
        seed: Makes sampling repeatable.
        logprobs: Log-probabilities of this many likeliest tokens at each position; with `details`.
        model: Its name; default: the server's only model that generates.
        version: Version of the model; default: the server's choice.
        timeout_s: Timeout of this call, or of each prompt of a list, in seconds; default: the
            client's.
        **parameters: Further parameters of generation, checked by the server.

    Returns:
        A text, or a `Generated` with `details`; for a list of prompts a list of these; with `n` a
        list of n instead of each; with `stream` an iterator.

    Raises:
        ClientError: With the server's message.
    """
    inputs, several = prompt_inputs(prompt, ids)
    asked = asked_for(
        details, stream, model, version, timeout_s, parameters,
        max_new_tokens=max_new_tokens, n=n, temperature=temperature, top_p=top_p, top_k=top_k,
        stop=stop, seed=seed, logprobs=logprobs,
    )  # fmt: skip
    return (yield from generated(settings, inputs, several, asked))


def chat(
    settings: Settings,
    /,
    messages: Messages,
    *,
    details: bool = False,
    stream: bool = False,
    max_new_tokens: int | None = None,
    n: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    logprobs: int | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Any,
) -> Plan[Any]:
    """Generates the model's answer in a conversation, which its chat template renders. All other
    arguments are those of `generate`.

    Args:
        messages: A list of `{"role": …, "content": …}`.
        chat_template_kwargs: Further variables of the template (`enable_thinking`, …).
        model: Its name; default: the server's only decoder, or its only encoder-decoder model.

    Returns:
        As `generate` for one prompt.

    Raises:
        ClientError: With the server's message.
    """
    model = yield from model_for(settings, model, "chat", timeout_s)
    asked = asked_for(
        details, stream, model, version, timeout_s, parameters,
        max_new_tokens=max_new_tokens, n=n, temperature=temperature, top_p=top_p, top_k=top_k,
        stop=stop, seed=seed, logprobs=logprobs, chat_template_kwargs=chat_template_kwargs,
    )  # fmt: skip
    return (yield from generated(settings, [messages_input(messages)], False, asked))


def asked_for(
    details: bool,
    stream: bool,
    model: str | None,
    version: str,
    timeout_s: float | None,
    parameters: dict[str, Any],
    **named: Any,
) -> Asked:
    given = {name: value for name, value in named.items() if value is not None} | parameters
    if "n" not in given and given.get(_N_OF_TRANSFORMERS) is not None:
        given["n"] = given.pop(_N_OF_TRANSFORMERS)
    return Asked(details, stream, model, version, timeout_s, given)


def generated(
    settings: Settings, inputs: Sequence[Arrays], several: bool, asked: Asked
) -> Plan[Any]:
    if asked.stream:
        _check_stream(several, asked)
        calls = yield from _calls(settings, inputs, asked)
        return Streaming(calls[0], asked)
    calls = yield from _calls(settings, inputs, asked, several)
    answers = (yield from answers_of(settings, calls)) if calls else []
    found: list[Any] = []
    for responses in answers:
        if len(responses) != 1:
            got = f"{len(responses)} responses"
            raise ServerError(f"{TEXT}: got {got}, wanted one; is it a model that generates?")
        made = [each if asked.details else each.text for each in pieces(responses[0], asked)]
        found.append(made if "n" in asked.parameters else made[0])
    return found if several else found[0]


def _calls(
    settings: Settings, inputs: Sequence[Arrays], asked: Asked, several: bool = False
) -> Plan[list[Infer]]:
    """Returns one call for each prompt."""
    if not inputs:
        return []
    encoded = json_text("parameters", asked.parameters).encode()
    task = "transcribe" if asked.audio else "generate"
    name = yield from model_for(settings, asked.model, task, asked.timeout_s)
    flags = {"stream": asked.stream}
    if not asked.audio:
        flags["exclude_input_in_output"] = True
    flags |= {f"return_{detail}": True for detail in asked.outputs}
    if asked.audio and "return_timestamps" not in asked.parameters:
        flags.pop("return_segments", None)  # requesting segments would turn timestamps on
    common = {flag: np.array([value]) for flag, value in flags.items()}
    common["sampling_parameters"] = np.array([encoded], np.object_)
    outputs = (TEXT, *(name for name in asked.outputs if f"return_{name}" in flags))
    field = "audio" if asked.audio else "prompt"
    return [
        Infer(
            name, {**each, **common}, outputs, {}, asked.version, "", asked.timeout_s,
            decoupled=True,
            places=dict.fromkeys(each, f"{field}[{index}]") if several else {},
        )
        for index, each in enumerate(inputs)
    ]  # fmt: skip


def _check_stream(several: bool, asked: Asked) -> None:
    if several:
        raise InvalidArgument("stream: got several prompts, wanted one; stream each by itself")
    if not asked.details and asked.parameters.get("n", 1) != 1:
        raise InvalidArgument(
            f"n: got {asked.parameters['n']!r} together with stream, wanted details=True, which "
            "says to which text a piece belongs; add it"
        )

"""What both clients ask about the server, and how a model is found. Nothing here waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .answers import ModelInfo, ModelStatistics
from .calls import Ask, Infer, Parameter, Plan
from .errors import ClientError, InvalidArgument, NotFound, Unavailable

Arrays = dict[str, np.ndarray]


@dataclass
class Settings:
    """What a plan knows of its client. `found` remembers the model of a task."""

    model: str | None
    max_batch: int
    found: dict[tuple[str, str], str]


def ready(
    settings: Settings, /, model: str = "", *, version: str = "", timeout_s: float | None = None
) -> Plan[bool]:
    """Whether the server, or one model, takes requests; False when it cannot be reached."""
    try:
        answers = yield [Ask("ready", model, version, timeout_s)]
    except Unavailable:
        return False
    return bool(answers[0]["ready"])


def models(settings: Settings, /, *, timeout_s: float | None = None) -> Plan[list[ModelInfo]]:
    """The loaded models. Read from the statistics: the repository API is for administrators."""
    loaded: dict[str, list[str]] = {}
    for one in (yield from statistics(settings, timeout_s=timeout_s)):
        loaded.setdefault(one.name, []).append(one.version)
    answers = yield [Ask("metadata", name, timeout_s=timeout_s) for name in loaded]
    return [
        ModelInfo(
            name,
            tuple(loaded[name]),
            tuple(tensor["name"] for tensor in answer.get("inputs", [])),
            tuple(tensor["name"] for tensor in answer.get("outputs", [])),
        )
        for name, answer in zip(loaded, answers, strict=True)
    ]


def statistics(
    settings: Settings, /, model: str = "", *, timeout_s: float | None = None
) -> Plan[list[ModelStatistics]]:
    """The server's counters, one record for each model version; of one model where it is named."""
    answers = yield [Ask("statistics", model, timeout_s=timeout_s)]
    return [ModelStatistics.of(record) for record in answers[0].get("model_stats", [])]


def infer(
    settings: Settings,
    /,
    model: str,
    inputs: Mapping[str, np.ndarray],
    *,
    outputs: Sequence[str] = (),
    parameters: Mapping[str, Parameter] | None = None,
    version: str = "",
    request_id: str = "",
    timeout_s: float | None = None,
) -> Plan[Arrays]:
    """One request to any model, tensors in and out as they are; STRING tensors hold bytes.

    Args:
        model: Its name.
        inputs: Tensors by name.
        outputs: Names of those wanted; default: all.
        parameters: Of the request.
        version: Of the model; default: the server's choice.
        request_id: For the server's logs.
        timeout_s: For this call, retries included, instead of the client's.
    """
    call = Infer(model, inputs, outputs, dict(parameters or {}), version, request_id, timeout_s)
    outputs_of: list[Arrays] = yield from answers_of(settings, [call])
    return outputs_of[0]


def answers_of(settings: Settings, calls: Sequence[Infer]) -> Plan[list]:
    """The answers of calls to one model; NotFound says which models there are."""
    try:
        return (yield calls)
    except NotFound as error:
        raise (yield from with_names(settings, error, calls[0])) from None


def with_names(settings: Settings, error: NotFound, call: Infer) -> Plan[NotFound]:
    """The error of a model that there is not, with the names of those there are."""
    try:
        records = yield from statistics(settings, timeout_s=call.timeout_s)
    except ClientError:  # not for this client, or no longer there: the server's own words will do
        return error
    names = sorted({record.name for record in records})
    if call.model in names:  # another version of it
        return error
    there = f"one of {', '.join(names)}" if names else "one that is loaded, and none is"
    return NotFound(f"model: got {call.model!r}, wanted {there}; correct the name", error.status)


def model_for(
    settings: Settings, model: str | None, task: str, timeout_s: float | None, given: str = ""
) -> Plan[str]:
    """The model named, or the client's, or the server's only one that does the task, and takes the
    input that is `given`."""
    return model or settings.model or (yield from _find(settings, task, timeout_s, given))


def _find(settings: Settings, task: str, timeout_s: float | None, given: str) -> Plan[str]:
    if (task, given) not in settings.found:
        loaded = yield from models(settings, timeout_s=timeout_s)
        fitting = [m.name for m in _doing(loaded, task) if given in ("", *m.inputs)]
        if not fitting:
            there = ", ".join(f"{m.name} ({m.task or 'other'})" for m in loaded) or "none"
            takes = f" of {given}" if given in ("image", "pixel_values") else ""
            raise NotFound(f"model: got {there}, wanted one that does {task!r}{takes}; load one")
        if len(fitting) > 1:
            raise InvalidArgument(
                f"model: got {len(fitting)} that do {task!r} ({', '.join(fitting)}), wanted one; "
                "name it with model=…"
            )
        settings.found[task, given] = fitting[0]
    return settings.found[task, given]


def _doing(loaded: Sequence[ModelInfo], task: str) -> list[ModelInfo]:
    """The models that do the task. For chat an encoder-decoder model is taken only where there is
    no other."""
    found = [model for model in loaded if model.does(task)]
    others = [model for model in found if not model.does("translate")]
    return others if task == "chat" and others else found

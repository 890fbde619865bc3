"""Requests about the server that both clients share, and the choice of a model, as plans without
I/O."""

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
    """What a plan knows of its client. `found` caches the model of a task."""

    model: str | None
    max_batch: int
    found: dict[tuple[str, str], str]


def ready(
    settings: Settings, /, model: str = "", *, version: str = "", timeout_s: float | None = None
) -> Plan[bool]:
    """Returns whether the server, or one model, takes requests; False when it cannot be reached."""
    try:
        answers = yield [Ask("ready", model, version, timeout_s)]
    except Unavailable:
        return False
    return bool(answers[0]["ready"])


def models(settings: Settings, /, *, timeout_s: float | None = None) -> Plan[list[ModelInfo]]:
    """Returns the loaded models. They are read from the statistics, as the repository API is for
    administrators."""
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
    """Returns the server's counters, one record per model version; those of one model where it is
    named."""
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
    """Sends one request to any model, with tensors in and out; STRING tensors hold bytes.

    Args:
        model: Its name.
        inputs: Tensors by name.
        outputs: Names of the wanted outputs; default: all.
        parameters: Parameters of the request.
        version: Version of the model; default: the server's choice.
        request_id: Identifies the request in the server's logs.
        timeout_s: Timeout of this call with its retries, in seconds; default: the client's.
    """
    call = Infer(model, inputs, outputs, dict(parameters or {}), version, request_id, timeout_s)
    outputs_of: list[Arrays] = yield from answers_of(settings, [call])
    return outputs_of[0]


def answers_of(settings: Settings, calls: Sequence[Infer]) -> Plan[list]:
    """Returns the answers of calls to one model. NotFound lists the models that exist."""
    try:
        return (yield calls)
    except NotFound as error:
        raise (yield from with_names(settings, error, calls[0])) from None


def with_names(settings: Settings, error: NotFound, call: Infer) -> Plan[NotFound]:
    """Returns the error of an unknown model, with the names of those that exist."""
    try:
        records = yield from statistics(settings, timeout_s=call.timeout_s)
    # Not permitted, or the server is gone: the original error is enough.
    except ClientError:
        return error
    names = sorted({record.name for record in records})
    if call.model in names:  # the model exists, not the version
        return error
    there = f"one of {', '.join(names)}" if names else "one that is loaded, and none is"
    return NotFound(f"model: got {call.model!r}, wanted {there}; correct the name", error.status)


def model_for(
    settings: Settings, model: str | None, task: str, timeout_s: float | None, given: str = ""
) -> Plan[str]:
    """Returns the model named, or the client's, or the server's only one that does the task and has
    the input `given`."""
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
    """Returns the models that do the task. Encoder-decoder models count for chat only where no
    other model does it."""
    found = [model for model in loaded if model.does(task)]
    others = [model for model in found if not model.does("translate")]
    return others if task == "chat" and others else found

"""What all methods of encoder models share: their parameters, the choice of the model, its
requests."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from .calls import Infer, Parameter, Plan
from .plans import Arrays, Settings, answers_of, model_for
from .tensors import Inputs


class Where(NamedTuple):
    """Which model is called, with which parameters and deadline."""

    model: str | None
    version: str
    timeout_s: float | None
    parameters: dict[str, Parameter]


def given(parameters: dict[str, Parameter], **named: Parameter | None) -> dict[str, Parameter]:
    """Returns the request's parameters without those that are None (not given)."""
    return {**{name: value for name, value in named.items() if value is not None}, **parameters}


def ask(
    settings: Settings, task: str, requests: list[Inputs], outputs: list[str], where: Where
) -> Plan[list[Arrays]]:
    given = next(iter(requests[0]))
    name = yield from model_for(settings, where.model, task, where.timeout_s, given)
    firsts = accumulate((len(inputs[given]) for inputs in requests[:-1]), initial=0)
    calls = [
        Infer(
            name, inputs, outputs, where.parameters, where.version, "", where.timeout_s,
            first=first if len(requests) > 1 else None,
        )
        for inputs, first in zip(requests, firsts, strict=True)
    ]  # fmt: skip
    return (yield from answers_of(settings, calls))


def strings(answers: list[Arrays], output: str) -> list[bytes]:
    return [text for one in answers for text in one[output].reshape(-1)]

"""One exchange with the server, as data: what the wires encode and the transports carry."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from .errors import InvalidArgument, type_name

Parameter = str | int | float | bool


@dataclass(frozen=True)
class Infer:
    """One inference request. Answered with `dict[str, np.ndarray]`; of a decoupled model, which
    may send any number of responses, with a list of them."""

    model: str
    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[str] = ()  # empty: all of them
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    version: str = ""
    request_id: str = ""
    timeout_s: float | None = None
    decoupled: bool = False

    def __post_init__(self) -> None:
        _check_names(self.model, self.version)


@dataclass(frozen=True)
class Ask:
    """A question about the server. Answered with the JSON object of the KServe v2 protocol.

    `about`: "ready", "metadata" or "statistics"; an empty model means the server, or all models.
    """

    about: str
    model: str = ""
    version: str = ""
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        _check_names(self.model, self.version)


def _check_names(model: object, version: object) -> None:
    """InvalidArgument where one is no text, of which protobuf would say less."""
    for name, value in (("model", model), ("version", version)):
        if not isinstance(value, str):
            raise InvalidArgument(f"{name}: got {type_name(value)}, wanted str; write it as a text")


Call = Infer | Ask
T = TypeVar("T")

# A client method is a generator: it yields calls that may run at the same time, is sent their
# answers in the same order, and returns the method's result. Whoever drives it does the waiting,
# so one plan serves the blocking client and the asyncio one.
Plan = Generator[Sequence[Call], list[Any], T]

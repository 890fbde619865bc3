"""One exchange with the server, as data that the wires encode and the transports send."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from .errors import InvalidArgument, type_name

Parameter = str | int | float | bool


@dataclass(frozen=True)
class Infer:
    """One inference request. Its answer is a `dict[str, np.ndarray]`; that of a decoupled model,
    which may send any number of responses, is a list of them. `places`: tensor -> its place in a
    list of the caller's, for errors (`prompt[3]`)."""

    model: str
    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[str] = ()  # empty: all outputs
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    version: str = ""
    request_id: str = ""
    timeout_s: float | None = None
    decoupled: bool = False
    places: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_names(self.model, self.version)


@dataclass(frozen=True)
class Ask:
    """A question about the server. Its answer is the JSON object of the KServe v2 protocol.

    `about`: "ready", "metadata" or "statistics"; an empty model means the server, or all models.
    """

    about: str
    model: str = ""
    version: str = ""
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        _check_names(self.model, self.version)


def _check_names(model: object, version: object) -> None:
    """Raises InvalidArgument for names that are not strings, as protobuf's own message tells
    less."""
    for name, value in (("model", model), ("version", version)):
        if not isinstance(value, str):
            raise InvalidArgument(f"{name}: got {type_name(value)}, wanted str; write it as a text")


Call = Infer | Ask


@contextmanager
def placing(call: Call) -> Iterator[None]:
    """Names in errors of a call the place of a tensor instead of the tensor."""
    try:
        yield
    except InvalidArgument as error:
        name, got, what = error.message.partition(": got ")
        if isinstance(call, Ask) or name not in call.places:
            raise
        raise InvalidArgument(f"{call.places[name]}{got}{what}", error.status) from None


T = TypeVar("T")

# A client method is a generator: it yields calls that may run concurrently, receives their
# answers in the same order, and returns the method's result. The client that drives it does the
# waiting, so one plan serves the blocking client and the asyncio client.
Plan = Generator[Sequence[Call], list[Any], T]

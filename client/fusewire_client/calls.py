"""One exchange with the server, as data that the wires encode and the transports send."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from .errors import InvalidArgument, type_name

Parameter = str | int | float | bool
_TENSOR = re.compile(r"(\w+)(?:\[(\d{1,9})\])?(?=: got )")  # at the beginning of a message


@dataclass(frozen=True)
class Infer:
    """One inference request. Its answer is a `dict[str, np.ndarray]`; that of a decoupled model,
    which may send any number of responses, is a list of them. For errors, `places`: tensor -> its
    place in a list of the caller's (`prompt[3]`); `first`: where the rows of the request begin in
    that list, if others have more of it."""

    model: str
    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[str] = ()  # empty: all outputs
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    version: str = ""
    request_id: str = ""
    timeout_s: float | None = None
    decoupled: bool = False
    places: Mapping[str, str] = field(default_factory=dict)
    first: int | None = None

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
    """Names in errors of a call the place of a tensor, or of a row, in the caller's list."""
    try:
        yield
    except InvalidArgument as error:
        found = _TENSOR.match(error.message)
        place = None if found is None or isinstance(call, Ask) else _place(call, *found.groups())
        if found is None or place is None:
            raise
        raise InvalidArgument(place + error.message[found.end() :], error.status) from None


def _place(call: Infer, name: str, row: str | None) -> str | None:
    if name in call.places:
        return call.places[name]
    if (
        call.first is None
        or name not in call.inputs
        or (row is None and len(call.inputs[name]) > 1)
    ):
        return None
    return f"{name}[{call.first + int(row or 0)}]"


T = TypeVar("T")

# A client method is a generator: it yields calls that may run concurrently, receives their
# answers in the same order, and returns the method's result. The client that drives it does the
# waiting, so one plan serves the blocking client and the asyncio client.
Plan = Generator[Sequence[Call], list[Any], T]

"""One exchange with the server, as data: what the wires encode and the transports carry."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

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


@dataclass(frozen=True)
class Ask:
    """A question about the server. Answered with the JSON object of the KServe v2 protocol.

    `about`: "ready", "metadata" or "statistics"; an empty model means the server, or all models.
    """

    about: str
    model: str = ""
    version: str = ""
    timeout_s: float | None = None


Call = Infer | Ask
T = TypeVar("T")

# A client method is a generator: it yields calls that may run at the same time, is sent their
# answers in the same order, and returns the method's result. Whoever drives it does the waiting,
# so one plan serves the blocking client and the asyncio one.
Plan = Generator[Sequence[Call], list[Any], T]

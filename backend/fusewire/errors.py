"""All exceptions that fusewire raises deliberately: their kinds, and the status of each.

The serving layer passes the text on unchanged, so a message has to be complete: what, got, wanted,
remedy. It never contains a traceback. Code decides by the kind, never by the text.
"""

from __future__ import annotations

import re
from copy import copy
from typing import NamedTuple, Self

_LONGEST_NAME = 64
_PLAIN = re.compile(r"[A-Za-z_]\w*(\[\d+\])?", re.ASCII)  # a name, or an entry of a list
_LONGEST_VALUE = 80


def shown(value: object) -> str:
    """Returns a value of a configuration as messages quote it. JSON may be nested deeper than repr
    can recurse."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} nested too deeply"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def sent(value: object) -> str:
    """Returns a value of a request as messages quote it, with booleans and null spelt as in
    JSON."""
    if value is None or isinstance(value, bool):
        return _JSON_WORDS[value]
    return repr(value)[:_LONGEST_VALUE]


def type_name(value: object, none: str = "None") -> str:
    """Returns the name of a value's type for messages. `none`: how None was written (null in
    JSON)."""
    return none if value is None else type(value).__name__


def counted(number: int, things: str) -> str:
    """Returns a number with its noun: `1 text`, `2 texts`. `things`: the plural, which ends in
    s."""
    return f"{number} {things if number != 1 else things.removesuffix('s')}"


_JSON_WORDS = {None: "null", True: "true", False: "false"}
_JSON_TYPES = {dict: "object", list: "list", str: "string", int: "number", float: "number"}


def json_type(value: object) -> str:
    """Returns the type of a JSON value for messages; null, true and false are named by
    themselves."""
    if value is None or isinstance(value, bool):
        return _JSON_WORDS[value]
    return f"a JSON {_JSON_TYPES[type(value)]}"


class FusewireError(Exception):
    """Base class of all errors that fusewire raises deliberately. An error that several requests
    receive has to be copied for each, since an exception collects a traceback from every raise."""

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles the error by its message; the arguments of its constructor are not
        kept."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class InvalidInput(FusewireError):
    """The request is at fault: it is answered with INVALID_ARG, other requests are not affected."""

    def __init__(
        self, field: str, got: object, wanted: str, remedy: str, row: int | None = None
    ) -> None:
        """`row`: which row of the field's it is, where a request has several."""
        self.field = field
        # Lists in requests are stored as tuples.
        got = list(got) if isinstance(got, tuple) else got
        self.got = sent(got) if isinstance(got, bool) else got
        self.wanted, self.remedy = wanted, remedy
        # A client may send any field name: of any length, with any characters.
        plain = len(field) <= _LONGEST_NAME and _PLAIN.fullmatch(field)
        shown = field if plain else repr(field[:_LONGEST_NAME])
        shown += "" if row is None else f"[{row}]"
        super().__init__(f"{shown}: got {self.got}, wanted {wanted}; {remedy}")

    def in_row(self, row: int | None) -> InvalidInput:
        """Returns the same error for a row; None: for the only one."""
        return InvalidInput(self.field, self.got, self.wanted, self.remedy, row)

    def at(self, where: str) -> Self:
        """Returns the same error for one of several inputs; `where` names that input."""
        twin = copy(self)
        twin.args = (f"{where}: {self}",)
        return twin


class Unavailable(FusewireError):
    """The request cannot be answered now, and is not at fault. It may succeed later, or on another
    server."""

    reason = "server"  # label of the metric that counts rejections


class QueueFull(Unavailable):
    """The queue holds as many requests as it may: the request is rejected at once."""

    reason = "queue"
    retry_after_s = 1.0  # by then a full queue has room again: a step takes milliseconds


class Overloaded(QueueFull):
    """By the predicted cost of the requests in the queue, the request would be answered too late.
    It is rejected at once, before it is tokenised."""

    reason = "overload"

    def __init__(self, message: str, retry_after_s: float) -> None:
        """`retry_after_s`: seconds until the requests that wait now are computed. It is at the end
        of the text, where `fusewire_client` reads it: KServe's transports carry nothing else."""
        super().__init__(f"{message}; try again in {max(retry_after_s, 0.1):.1f} s")
        self.retry_after_s = retry_after_s


class DeadlineExceeded(Unavailable):
    """The request's deadline has passed, or would pass: Triton's `timeout`, `timeout_seconds`, or
    the model's `slo_ms`."""

    reason = "deadline"


class Cancelled(FusewireError):
    """The client has disconnected or cancelled the request, and no answer is computed."""


class ComputeFailed(FusewireError):
    """The server failed while it computed an answer: a defect, or a device that failed."""


class OutOfMemory(ComputeFailed):
    """There is not enough memory to compute the answer."""


class CheckpointError(FusewireError):
    """The model folder is at fault: missing, damaged, malicious or unsupported files."""


class ConfigurationError(FusewireError):
    """The configuration is at fault: an unknown setting, one of a wrong type, or contradictory
    ones."""


class Unsupported(FusewireError, NotImplementedError):
    """A feature that is not implemented; the message names what to use instead."""

    def __init__(self, what: str, got: object, wanted: str, instead: str) -> None:
        super().__init__(f"{what}: got {got}, wanted {wanted}; {instead}")


class Status(NamedTuple):
    """The status that a kind of error is answered with: `triton` is the name of TritonError's code,
    `grpc` the status that Triton derives from it, `http` the status of the OpenAI endpoint. Triton
    lets a Python backend choose among UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE,
    UNSUPPORTED, ALREADY_EXISTS and CANCELLED, and its HTTP endpoint maps UNAVAILABLE to 503. So its
    ports have neither DEADLINE_EXCEEDED nor 429 or 504; there only the text of the message
    distinguishes them."""

    triton: str
    grpc: str
    http: int


# The first entry that is the kind or a base class of it applies.
_STATUS: dict[type[FusewireError], Status] = {
    InvalidInput: Status("INVALID_ARG", "INVALID_ARGUMENT", 400),
    QueueFull: Status("UNAVAILABLE", "UNAVAILABLE", 429),
    DeadlineExceeded: Status("UNAVAILABLE", "UNAVAILABLE", 504),
    Unavailable: Status("UNAVAILABLE", "UNAVAILABLE", 503),
    Cancelled: Status("CANCELLED", "CANCELLED", 503),  # only read if the server itself cancelled
    FusewireError: Status("INTERNAL", "INTERNAL", 500),
}


def status_of(kind: type[FusewireError]) -> Status:
    """Returns the status that errors of a kind are answered with."""
    return next(status for above, status in _STATUS.items() if issubclass(kind, above))

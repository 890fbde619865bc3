"""Every exception fusewire raises on purpose: the kinds, and the status that each is answered with.

The serving layer passes the text through unchanged, so a message must stand alone: what, got,
wanted, remedy. It never carries a traceback. Programs decide by the kind, never by the words.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple, Self

_LONGEST_NAME = 64
_LONGEST_VALUE = 80


def shown(value: object) -> str:
    """A value of a configuration as messages quote it: JSON nests deeper than repr can follow."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} nested too deeply"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def sent(value: object) -> str:
    """A value of a request as messages quote it: flags and null as JSON spells them."""
    if value is None or isinstance(value, bool):
        return _JSON_WORDS[value]
    return repr(value)[:_LONGEST_VALUE]


def type_name(value: object, none: str = "None") -> str:
    """The type of a value as messages name it. `none`: how None was written, null in JSON."""
    return none if value is None else type(value).__name__


def counted(number: int, things: str) -> str:
    """A number with its noun, as messages say it: `1 text`, `2 texts`. `things`: the plural, with
    an s."""
    return f"{number} {things if number != 1 else things.removesuffix('s')}"


_JSON_WORDS = {None: "null", True: "true", False: "false"}
_JSON_TYPES = {dict: "object", list: "list", str: "string", int: "number", float: "number"}


def json_type(value: object) -> str:
    """A value of JSON as messages name it."""
    if value is None or isinstance(value, bool):
        return _JSON_WORDS[value]
    return f"a JSON {_JSON_TYPES[type(value)]}"


class FusewireError(Exception):
    """Base of all errors that fusewire raises deliberately. One that several requests get is copied
    for each: an error collects the tracebacks of all who raise it."""

    def __reduce__(self) -> tuple[object, ...]:
        """Copied and pickled by its message: the arguments of its kind are not kept."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class InvalidInput(FusewireError):
    """A request's fault: answered with INVALID_ARG, the other requests are not disturbed."""

    def __init__(self, field: str, got: object, wanted: str, remedy: str) -> None:
        self.field = field
        # Lists of a request are kept as tuples.
        got = list(got) if isinstance(got, tuple) else got
        self.got = sent(got) if isinstance(got, bool) else got
        self.wanted, self.remedy = wanted, remedy
        # A field may be a name that the client made up: of any length, with any characters.
        plain = field.isascii() and field.isidentifier() and len(field) <= _LONGEST_NAME
        shown = field if plain else repr(field[:_LONGEST_NAME])
        super().__init__(f"{shown}: got {self.got}, wanted {wanted}; {remedy}")

    def in_row(self, row: int) -> InvalidInput:
        """The same error, of one of a request's rows."""
        return InvalidInput(self.field, f"{self.got} in row {row}", self.wanted, self.remedy)

    def at(self, where: str) -> Self:
        """The same error, of one of several inputs: `where` says of which."""
        twin = copy(self)
        twin.args = (f"{where}: {self}",)
        return twin


class Unavailable(FusewireError):
    """Nobody's fault: a request cannot be answered now. The same request may succeed later, or on
    another server."""

    reason = "server"  # of rejections, on the metrics page


class QueueFull(Unavailable):
    """As many requests wait as may: answered at once."""

    reason = "queue"
    retry_after_s = 1.0  # a full queue has moved on by then: a step takes milliseconds


class Overloaded(QueueFull):
    """By the predicted cost of what waits, a request would be answered too late: refused at once,
    before it is tokenised."""

    reason = "overload"

    def __init__(self, message: str, retry_after_s: float) -> None:
        """`retry_after_s`: by then what waits now is computed. It ends the text: KServe's
        transports carry nothing else, and `fusewire_client` reads it there."""
        super().__init__(f"{message}; try again in {max(retry_after_s, 0.1):.1f} s")
        self.retry_after_s = retry_after_s


class DeadlineExceeded(Unavailable):
    """The request's own time passed, or would pass: Triton's `timeout`, `timeout_seconds`, or the
    model's `slo_ms`."""

    reason = "deadline"


class Cancelled(FusewireError):
    """Its client has left, and no answer is computed."""


class ComputeFailed(FusewireError):
    """The server's fault while computing an answer: a defect, or a device that failed."""


class OutOfMemory(ComputeFailed):
    """No memory left to compute the answer in."""


class CheckpointError(FusewireError):
    """A model folder's fault: missing, damaged, hostile or unsupported files."""


class ConfigurationError(FusewireError):
    """An operator's fault: an unknown, ill-typed or contradictory setting."""


class Unsupported(FusewireError, NotImplementedError):
    """What nobody has written yet: names what does it instead."""

    def __init__(self, what: str, got: object, wanted: str, instead: str) -> None:
        super().__init__(f"{what}: got {got}, wanted {wanted}; {instead}")


class Status(NamedTuple):
    """How a kind is answered: `triton` is the name of TritonError's code, `grpc` the status that
    Triton makes of it, `http` the status of the OpenAI endpoint. Triton lets a backend in Python
    choose among UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS
    and CANCELLED, and its HTTP endpoint makes 503 of UNAVAILABLE: there is neither
    DEADLINE_EXCEEDED nor 429 or 504 on its ports, where the words say which it is."""

    triton: str
    grpc: str
    http: int


# The first that a kind is, or is below.
_STATUS: dict[type[FusewireError], Status] = {
    InvalidInput: Status("INVALID_ARG", "INVALID_ARGUMENT", 400),
    QueueFull: Status("UNAVAILABLE", "UNAVAILABLE", 429),
    DeadlineExceeded: Status("UNAVAILABLE", "UNAVAILABLE", 504),
    Unavailable: Status("UNAVAILABLE", "UNAVAILABLE", 503),
    Cancelled: Status("CANCELLED", "CANCELLED", 503),  # nobody reads it, unless the server gave up
    FusewireError: Status("INTERNAL", "INTERNAL", 500),
}


def status_of(kind: type[FusewireError]) -> Status:
    """How errors of a kind are answered."""
    return next(status for above, status in _STATUS.items() if issubclass(kind, above))

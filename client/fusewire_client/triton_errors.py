"""Converts the server's errors: by gRPC code or HTTP status, and by message where Triton has no
code for a kind of error, or sends none. No other module of this package depends on these
messages."""

from __future__ import annotations

import re

from .answers import TASK_OF_OUTPUT
from .errors import (
    Cancelled,
    ClientError,
    DeadlineExceeded,
    Expired,
    InvalidArgument,
    ModelDied,
    NoConnection,
    NotFound,
    OutOfMemory,
    Overloaded,
    PermissionDenied,
    QueueFull,
    ServerError,
    Unavailable,
)

_BY_GRPC_CODE: dict[str, type[ClientError]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "OUT_OF_RANGE": InvalidArgument,
    "NOT_FOUND": NotFound,
    "PERMISSION_DENIED": PermissionDenied,
    "UNAUTHENTICATED": PermissionDenied,
    "UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "CANCELLED": Cancelled,
}
_BY_HTTP_STATUS: dict[int, type[ClientError]] = {
    400: InvalidArgument,
    401: PermissionDenied,
    403: PermissionDenied,
    404: NotFound,
    503: Unavailable,
    504: DeadlineExceeded,
}

CLOSED = "call: got its client closed before the last response; close it when all are read"
_GENERATES = "one that does 'generate', or for audio 'transcribe'"
_READS_IMAGES = "one that reads images"
_HEARS = "one that does 'transcribe'"
# The kinds of models that have a tensor, for errors of requests with a tensor that the model does
# not have.
_WANTED_BY_INPUT = {
    "audio": _HEARS,
    "exclude_input_in_output": "one that does 'generate' of a text",
    "image": _READS_IMAGES,
    "messages": "one that does 'generate' of a text",
    "pixel_values": _READS_IMAGES,
    "samples": _HEARS,
    "text_input": "one that reads texts",
}
_WANTED_BY_OUTPUT = {
    **{output: f"one that does {task!r}" for output, task in TASK_OF_OUTPUT.items()},
    "alignment": "an encoder-decoder model",
    "cumulative_logprob": _GENERATES,
    "finish_reason": _GENERATES,
    "label": "one that does 'classify'",
    "language": _HEARS,
    "segments": _HEARS,
}

# Streams and `generate` carry the message of a model's error, but not its code; and Triton has
# fewer codes than there are kinds of errors.
_BY_WORDS: tuple[tuple[str, type[ClientError]], ...] = (
    (r"queue: got .*; try again in [\d.]+ s$", Overloaded),
    (r"queue: got ", QueueFull),
    (r"text_input: got over \d+ characters while ", QueueFull),
    (r"timeout: got more work", Expired),
    (r"timeout: got a request whose time", Expired),
    (r"[\w ]+: got a request while it stops", Unavailable),
    (r"\w+ process: got ", Unavailable),
    (r"cancelled: ", Cancelled),
    (r"memory: got ", OutOfMemory),
    (r"compute: got ", ServerError),
    (r".*is not healthy", ModelDied),
    (r"Request for unknown model", NotFound),
    (r"\S+: got .*, wanted .*; ", InvalidArgument),
    (r"(?i).*(connect|socket closed|resolv|DNS)", NoConnection),  # gRPC's own messages
)


def from_grpc(code: str, message: str) -> ClientError:
    """Returns the error for the name of a gRPC status code."""
    # Triton answers UNAVAILABLE where HTTP answers 403; waiting would not help.
    if code == "UNAVAILABLE" and "protocol is restricted" in message:
        return PermissionDenied(message, code)
    if code == "CANCELLED" and "closed" in message:  # gRPC's own message, of its channel
        message = CLOSED
    if message in ("Deadline Exceeded", "Stream removed (Deadline Exceeded)"):  # gRPC's own
        message = (
            "timeout: got no answer within the call's time; wait longer, or look at the server's "
            "load"
        )
    return _error(_BY_GRPC_CODE.get(code, ServerError), message, code)


def from_http(status: int, message: str) -> ClientError:
    """Returns the error for an HTTP status."""
    if message.startswith("Request for unknown model"):  # status 400 in an event stream
        return NotFound(message, str(status))
    if _kind(message) is Cancelled:  # status 400, as for an invalid request
        return Cancelled(message, str(status))
    return _error(_BY_HTTP_STATUS.get(status, ServerError), message, str(status))


def from_words(message: str) -> ClientError:
    """Returns the error for a model's message that came without a code."""
    kind = _kind(message)
    other = _of_another_task(message)
    return other or _made(ServerError if kind is NoConnection else kind, message)


def _error(kind: type[ClientError], message: str, status: str) -> ClientError:
    """Returns the error. `kind` follows from the code or status; the message may select a subclass
    of it."""
    found = _kind(message)
    if issubclass(found, kind):
        kind = found
    return _of_another_task(message, status) or _made(kind, message, status)


def _made(kind: type[ClientError], message: str, status: str = "") -> ClientError:
    error = kind(message, status)
    if isinstance(error, Overloaded):
        error.retry_after_s = float(message.split()[-2])
    return error


def _kind(message: str) -> type[ClientError]:
    return next(
        (kind for words, kind in _BY_WORDS if re.match(words, message, re.DOTALL)), ServerError
    )


def _of_another_task(message: str, status: str = "") -> InvalidArgument | None:
    """Returns the error where the server's message means that the model does another task, or
    None."""
    remedy = "name another with model=…"
    if found := re.search(
        r"unexpected inference (input|output) '(\w+)' for model '([^']+)'", message
    ):
        end, tensor, got = found.groups()
        known = _WANTED_BY_INPUT if end == "input" else _WANTED_BY_OUTPUT
        wanted = known.get(tensor, f"one with the {end} {tensor!r}")
    elif found := re.match(r"stream: got \w+, wanted one of the parameters of (\w+)", message):
        got, wanted = f"one that does {found[1]!r}", "one that does 'generate'"
    elif "support models with decoupled transaction policy" in message:
        got, wanted = "one that generates", "one that does another task"
        remedy += ", or call generate(…), for audio transcribe(…)"
    else:
        return None
    return InvalidArgument(f"model: got {got}, wanted {wanted}; {remedy}", status)

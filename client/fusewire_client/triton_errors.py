"""From what a server answers to errors: by gRPC codes and HTTP statuses, and by words where Triton
has no code for a kind of error, or sends none. No other module of this package knows these words.
"""

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

_GENERATES = "one that does 'generate', or of sound 'transcribe'"
_READS_IMAGES = "one that reads images"
_HEARS = "one that does 'transcribe'"
# What a model is taken for that is sent a tensor, or asked for one, which it has not.
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

# Streams and `generate` carry the words of a model's error, but not its code; and Triton has fewer
# codes than there are kinds.
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
    (r"(?i).*(connect|socket closed)", NoConnection),  # gRPC's own
)


def from_grpc(code: str, message: str) -> ClientError:
    """The error for a gRPC status code's name."""
    # Triton answers UNAVAILABLE where HTTP answers 403; waiting would not help.
    if code == "UNAVAILABLE" and "protocol is restricted" in message:
        return PermissionDenied(message, code)
    if message == "Deadline Exceeded":  # gRPC's own
        message = (
            "timeout: got no answer within the call's time; wait longer, or look at the server's "
            "load"
        )
    return _error(_BY_GRPC_CODE.get(code, ServerError), message, code)


def from_http(status: int, message: str) -> ClientError:
    """The error for an HTTP status."""
    if message.startswith("Request for unknown model"):  # 400 from an event stream
        return NotFound(message, str(status))
    if _kind(message) is Cancelled:  # 400, as for a request's own fault
        return Cancelled(message, str(status))
    return _error(_BY_HTTP_STATUS.get(status, ServerError), message, str(status))


def from_words(message: str) -> ClientError:
    """The error for a model's message that came without a code."""
    kind = _kind(message)
    other = _of_another_task(message)
    return other or _made(ServerError if kind is NoConnection else kind, message)


def _error(kind: type[ClientError], message: str, status: str) -> ClientError:
    """`kind`: by the code or status; the words may say which of those below it."""
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
    """What the server's words mean where a model was asked for what others do."""
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
        remedy += ", or call generate(…), of sound transcribe(…)"
    else:
        return None
    return InvalidArgument(f"model: got {got}, wanted {wanted}; {remedy}", status)

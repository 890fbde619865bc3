"""The errors of calls. Each has the server's message, or says what was wrong on this side."""

from __future__ import annotations

import re

from .answers import TASK_OF_OUTPUT


class ClientError(Exception):
    """Base of all errors of this package. `message`: the server's message; `status`: its code."""

    def __init__(self, message: str, status: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class InvalidArgument(ClientError):
    """The request is invalid: retrying cannot help."""


class NotFound(ClientError):
    """No such model or version, or none that does the task."""


class PermissionDenied(ClientError):
    """The server restricts this call: it needs a header (`Client(headers=…)`)."""


class Unavailable(ClientError):
    """No connection, overload, or the model is not ready. The only error that is retried."""


class DeadlineExceeded(ClientError):
    """`timeout_s` passed before the answer came."""


class Cancelled(ClientError):
    """The call was cancelled, here or by the server."""


class ServerError(ClientError):
    """The server failed, or answered what this client cannot read."""


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


def from_grpc(code: str, message: str) -> ClientError:
    """The error for a gRPC status code's name."""
    # Triton answers UNAVAILABLE where HTTP answers 403; waiting would not help.
    if code == "UNAVAILABLE" and "protocol is restricted" in message:
        return PermissionDenied(message, code)
    return _of_another_task(message, code) or _BY_GRPC_CODE.get(code, ServerError)(message, code)


def from_http(status: int, message: str) -> ClientError:
    """The error for an HTTP status."""
    if message.startswith("Request for unknown model"):  # 400 from an event stream
        return NotFound(message, str(status))
    return _of_another_task(message, str(status)) or _BY_HTTP_STATUS.get(status, ServerError)(
        message, str(status)
    )


# Streams and `generate` carry the words of a model's error, but not its code.
_BY_WORDS: tuple[tuple[str, type[ClientError]], ...] = (
    (r"queue: got \d+ sequences waiting", Unavailable),
    (r"timeout_seconds: got more work", Unavailable),
    (r"server: got a request while it stops", Unavailable),
    (r"cancelled: ", Cancelled),
    (r"(compute|memory): got ", ServerError),
    (r"Request for unknown model", NotFound),
    (r"\S+: got .*, wanted .*; ", InvalidArgument),
)


def from_words(message: str) -> ClientError:
    """The error for a model's message that came without a code."""
    if error := _of_another_task(message):
        return error
    for words, kind in _BY_WORDS:
        if re.match(words, message, re.DOTALL):
            return kind(message)
    return ServerError(message)


def _of_another_task(message: str, status: str = "") -> InvalidArgument | None:
    """What the server's words mean where a model was asked for what others do."""
    if found := re.search(r"unexpected inference output '(\w+)' for model '([^']+)'", message):
        output, got = found.groups()
        task = "classify" if output == "label" else TASK_OF_OUTPUT.get(output)
        wanted = f"one that does {task!r}" if task else f"one with the output {output!r}"
    elif found := re.match(r"stream: got \w+, wanted one of the parameters of (\w+)", message):
        got, wanted = f"one that does {found[1]!r}", "one that does 'generate'"
    elif "support models with decoupled transaction policy" in message:
        got, wanted = "one that does 'generate'", "one that does another task, or generate(…)"
    else:
        return None
    return InvalidArgument(f"model: got {got}, wanted {wanted}; name another with model=…", status)

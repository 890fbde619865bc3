"""The errors of calls. Each has the server's message, or says what was wrong on the client's
side."""

from __future__ import annotations


def type_name(value: object) -> str:
    """Returns the name of a value's type as error messages use it."""
    return "None" if value is None else type(value).__name__


class ClientError(Exception):
    """Base of all errors of this package. `message`: the server's message; `status`: its code."""

    def __init__(self, message: str, status: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class InvalidArgument(ClientError):
    """The request is invalid; retrying cannot help."""


class NotFound(ClientError):
    """There is no such model or version, or none that does the task."""


class PermissionDenied(ClientError):
    """The server restricts this call: it needs a header (`Client(headers=…)`)."""


class Unavailable(ClientError):
    """The server cannot be reached, is overloaded, or the model is not ready. The only error that
    is retried."""

    retry_after_s: float | None = None
    """When to try again, where the server says so."""


class QueueFull(Unavailable):
    """The server's queue is full."""


class Overloaded(QueueFull):
    """The server has more queued work than it can do before this request's deadline, and rejected
    it at once. `retry_after_s`: seconds after which that work is done."""


class Expired(Unavailable):
    """The request's own deadline, `timeout_s` or `timeout_seconds`, passed on the server, or would
    have passed before its answer: it was not computed, or not completely. Never retried."""


class NoConnection(Unavailable):
    """The server could not be reached, or the connection to it was lost."""


class DeadlineExceeded(ClientError):
    """`timeout_s` passed before the answer came."""


class Cancelled(ClientError):
    """The call was cancelled, here or by the server."""


class ServerError(ClientError):
    """The server failed, or its answer could not be parsed."""


class OutOfMemory(ServerError):
    """The server had not enough memory to compute the answer: send less at once."""


class ModelDied(ServerError):
    """The model's process died. `fusewire serve` starts another."""

"""The errors of calls. Each has the server's message, or says what was wrong on this side."""

from __future__ import annotations


def type_name(value: object) -> str:
    """The type of a value as messages name it."""
    return "None" if value is None else type(value).__name__


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

    retry_after_s: float | None = None
    """When to try again, where the server says so."""


class QueueFull(Unavailable):
    """As many requests wait on the server as may."""


class Overloaded(QueueFull):
    """The server has more work waiting than it could do before this request's deadline, and refused
    it at once. `retry_after_s`: by then that work is done."""


class Expired(Unavailable):
    """The request's own time, `timeout_s` or `timeout_seconds`, passed on the server, or would
    have: it was not computed, or not to its end. Never retried."""


class NoConnection(Unavailable):
    """No server was reached, or the connection to it was lost."""


class DeadlineExceeded(ClientError):
    """`timeout_s` passed before the answer came."""


class Cancelled(ClientError):
    """The call was cancelled, here or by the server."""


class ServerError(ClientError):
    """The server failed, or answered what this client cannot read."""


class OutOfMemory(ServerError):
    """The server had no memory to compute the answer in: send less at once."""


class ModelDied(ServerError):
    """The model's process died. `fusewire serve` starts another."""

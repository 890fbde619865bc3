"""All errors in OpenAI's format: {"error": {message, type, param, code}}.

The message is the model's own: what, got, wanted, remedy. `param` is the parameter at its
beginning, under the name in the client's request.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from math import ceil
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fusewire_client import errors as client
from pydantic import ValidationError
from starlette.exceptions import HTTPException as AnyHTTPException

from fusewire.errors import (
    DeadlineExceeded,
    FusewireError,
    InvalidInput,
    Overloaded,
    QueueFull,
    Unavailable,
    sent,
    status_of,
)

# OpenAI's clients retry after any 5xx, which is useless after a timeout.
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 504: {"x-should-retry": "false"}}
_FIELD = re.compile(r"('[^']{1,64}'|[A-Za-z_]\w{0,63})(\[\d{1,9}\])?: got ")
_TYPES = {
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable",
    504: "timeout_error",
}
_LATER = "; try again later"
# Error of the client package -> our error. The first match applies.
_KINDS: dict[type[client.ClientError], type[FusewireError]] = {
    client.InvalidArgument: InvalidInput,
    client.Overloaded: Overloaded,
    client.QueueFull: QueueFull,
    client.Expired: DeadlineExceeded,
    client.Unavailable: Unavailable,
    client.Cancelled: Unavailable,
    client.NotFound: Unavailable,
    client.ModelDied: Unavailable,
    client.ClientError: FusewireError,
}
NO_OBJECT = "body: got none, wanted a JSON object; send one, as Content-Type: application/json"
_SHOWN_CHARACTERS = 80
_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxdict = 16
_REPR.maxstring = _REPR.maxother = 2 * _SHOWN_CHARACTERS


class ApiError(HTTPException):
    """A response that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float = 1.0,
    ) -> None:
        """`retry_after_s`: for a status that asks the client to retry."""
        headers = _HEADERS.get(status)
        if status in (429, 503):
            headers = {"Retry-After": str(ceil(retry_after_s))}
        super().__init__(status, message, headers)
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def of(error: Exception, names: Mapping[str, str] | None = None) -> ApiError:
    """Returns the response for an error. `names`: a model's names -> those in the client's
    request."""
    if isinstance(error, ApiError):
        return error
    # The time limit of the endpoint's own call, which is the client's `timeout_seconds`.
    if isinstance(error, client.DeadlineExceeded):
        return ApiError(504, str(error), param="timeout_seconds", code="timeout")
    kind = next((kind for theirs, kind in _KINDS.items() if isinstance(error, theirs)), type(error))
    if not issubclass(kind, FusewireError):
        return ApiError(500, f"server: got {type(error).__name__}; its log has the details")
    status, message = status_of(kind).http, str(error)
    if issubclass(kind, InvalidInput):
        return _of_input(status, message, names or {})
    if isinstance(error, (Overloaded, client.Overloaded)):
        after_s = error.retry_after_s or 0.0  # differs between requests
        return ApiError(status, message, code="overloaded", retry_after_s=after_s)
    if issubclass(kind, QueueFull):
        return ApiError(status, message, code="rate_limit_exceeded")
    if issubclass(kind, DeadlineExceeded):
        return ApiError(status, message, param="timeout_seconds", code="timeout")
    # The endpoint itself has the list of models: this one exists, but is not loaded at the moment.
    if isinstance(error, (client.NotFound, client.ModelDied)):
        message = "model: got one that is not loaded, wanted one that is; try again later"
    elif isinstance(error, client.NoConnection):  # gRPC's message names sockets and files
        message = f"server: got no connection{_LATER}"
    elif issubclass(kind, Unavailable):
        message = f"server: {message.removesuffix(_LATER)}{_LATER}"
    return ApiError(status, message)


def _of_input(status: int, message: str, names: Mapping[str, str]) -> ApiError:
    field = _FIELD.match(message)
    if field is None:
        return ApiError(status, message)
    own, row = field[1].strip("'"), field[2] or ""
    param = names.get(own, own) + row
    if own in names:
        message = param + message[len(field[1]) + len(row) :]
    return ApiError(status, message, param=param)


def invalid(error: ValidationError) -> ApiError:
    """Returns the response for a body with invalid types: the first of them."""
    first = error.errors(include_url=False, include_context=False)[0]
    param = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]
    ).removeprefix(".")
    wanted = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    if first["type"] == "missing":
        return ApiError(400, f"{param}: not set, but required; add it", param=param)
    remedy = "correct it"
    if first["type"] == "extra_forbidden":
        wanted, remedy = "a supported field", "remove it"
    message = f"{param}: got {shown(first['input'])}, wanted {wanted}; {remedy}"
    return ApiError(400, message, param=param)


def not_json(kind: str) -> str:
    """Returns the message for a body of another type. `kind`: the value of Content-Type."""
    if kind == "none":
        return NO_OBJECT
    return (
        f"Content-Type: got {kind[:_SHOWN_CHARACTERS]}, wanted application/json; set the header "
        "(curl: -H 'Content-Type: application/json')"
    )


def packed(coding: str) -> str:
    """Returns the message for a compressed body. `coding`: the value of Content-Encoding."""
    return f"Content-Encoding: got {coding[:_SHOWN_CHARACTERS]}, wanted none; send the body plain"


def no_form(kind: str) -> str:
    """Returns the message for a body of another type where a form with a file is required."""
    return (
        f"Content-Type: got {kind[:_SHOWN_CHARACTERS]}, wanted multipart/form-data; send the file "
        "as a form does (curl: -F file=@speech.wav -F model=NAME)"
    )


def shown(value: Any) -> str:
    """Returns the beginning of a value of any size in Python's notation; flags and null are in
    JSON's."""
    if value is None or isinstance(value, bool):
        return sent(value)
    return _REPR.repr(value)[:_SHOWN_CHARACTERS]


def install(app: FastAPI) -> None:
    """Makes the app answer every error in this format."""

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return response(ApiError(400, NO_OBJECT))

    @app.exception_handler(AnyHTTPException)
    async def _http(request: Request, error: AnyHTTPException) -> JSONResponse:
        if isinstance(error, ApiError):
            return response(error)
        answer = ApiError(error.status_code, _refusal(request, error))
        answer.headers = error.headers  # for 405 they have the allowed methods
        return response(answer)

    @app.exception_handler(Exception)
    async def _any(request: Request, error: Exception) -> JSONResponse:
        return response(of(error))

    for kind in (client.ClientError, FusewireError):
        app.exception_handler(kind)(_any)


def response(error: ApiError) -> JSONResponse:
    """Returns the response of an error."""
    body: dict[str, Any] = error.body
    return JSONResponse(body, error.status_code, error.headers)


def _refusal(request: Request, error: AnyHTTPException) -> str:
    """Returns the message for a request that no route handles."""
    path = repr(request.url.path[:80])
    if error.status_code == 404:
        paths = ", ".join(route.path for route in request.app.routes if isinstance(route, APIRoute))
        return f"path: got {path}, wanted one of {paths}; a client's base_url ends in /v1"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow")
        return f"method: got {request.method}, wanted {allowed} for {path}; send that"
    return error.detail

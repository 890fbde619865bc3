"""Every error in OpenAI's shape: {"error": {message, type, param, code}}.

The words are the model's own: what, got, wanted, remedy. `param` is the parameter they begin with,
under the name the client gave it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fusewire_client import errors as client
from starlette.exceptions import HTTPException as AnyHTTPException

from fusewire.errors import FusewireError, InvalidInput

# A full queue has moved on by then: a step takes milliseconds.
_RETRY_AFTER = {"Retry-After": "1"}
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: _RETRY_AFTER, 503: _RETRY_AFTER}
_FIELD = re.compile(r"('[^']{1,64}'|[A-Za-z_]\w{0,63}): got ")
_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "service_unavailable"}
_NO_OBJECT = "body: got none, wanted a JSON object; send one, as Content-Type: application/json"
_NOT_JSON = (
    "Content-Type: got {got}, wanted application/json; set the header (curl: "
    "-H 'Content-Type: application/json')"
)


class ApiError(HTTPException):
    """An answer that is an error."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(status, message, _HEADERS.get(status))
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def of(error: Exception, names: Mapping[str, str] | None = None) -> ApiError:
    """The answer for what went wrong. `names`: a model's names -> those the client used."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (client.InvalidArgument, InvalidInput)):
        message = str(error)
        field = _FIELD.match(message)
        if field is None:
            return ApiError(400, message)
        own = field[1].strip("'")
        param = (names or {}).get(own, own)
        if param != own:
            message = param + message[len(field[1]) :]
        return ApiError(400, message, param=param)
    if isinstance(error, client.Unavailable) and str(error).startswith("queue: "):
        return ApiError(429, str(error), code="rate_limit_exceeded")
    # The client's own limit. OpenAI's clients would send 408, 409, 429 and 5xx again.
    if isinstance(error, client.Unavailable) and str(error).startswith("timeout_seconds: "):
        return ApiError(400, str(error), param="timeout_seconds", code="timeout")
    if isinstance(error, (client.Unavailable, client.Cancelled)):
        remedy = "; try again later"
        words = _without_address(error).removesuffix(remedy)
        return ApiError(503, f"server: {words}{remedy}")
    # The endpoint itself knows which models there are: this one is not loaded at the moment.
    if isinstance(error, client.NotFound) or "is not healthy" in str(error):
        return ApiError(
            503, "model: got one that is not loaded, wanted one that is; try again later"
        )
    if isinstance(error, client.DeadlineExceeded):
        return ApiError(504, str(error))
    if isinstance(error, (client.ClientError, FusewireError)):
        return ApiError(500, str(error))
    return ApiError(500, f"server: got {type(error).__name__}; its log has the details")


def install(app: FastAPI) -> None:
    """Lets the app answer every error so."""

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["loc"] == ("body",):
            kind = request.headers.get("content-type", "none")[:80]
            named = "json" in kind or kind == "none"
            return response(ApiError(400, _NO_OBJECT if named else _NOT_JSON.format(got=kind)))
        param = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"][1:]
        ).removeprefix(".")
        wanted = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
        if first["type"] == "missing":
            return response(ApiError(400, f"{param}: not set, but required; add it", param=param))
        remedy = "correct it"
        if first["type"] == "extra_forbidden":
            wanted, remedy = "a supported field", "remove it"
        message = f"{param}: got {repr(first['input'])[:80]}, wanted {wanted}; {remedy}"
        return response(ApiError(400, message, param=param))

    @app.exception_handler(AnyHTTPException)
    async def _http(request: Request, error: AnyHTTPException) -> JSONResponse:
        if isinstance(error, ApiError):
            return response(error)
        answer = ApiError(error.status_code, _refusal(request, error))
        answer.headers = error.headers  # a 405 has the methods that are allowed
        return response(answer)

    @app.exception_handler(Exception)
    async def _any(request: Request, error: Exception) -> JSONResponse:
        return response(of(error))

    for kind in (client.ClientError, FusewireError):
        app.exception_handler(kind)(_any)


def response(error: ApiError) -> JSONResponse:
    """The error as it is sent."""
    body: dict[str, Any] = error.body
    return JSONResponse(body, error.status_code, error.headers)


def _refusal(request: Request, error: AnyHTTPException) -> str:
    """The words for what no route takes."""
    path = repr(request.url.path[:80])
    if error.status_code == 404:
        paths = ", ".join(route.path for route in request.app.routes if isinstance(route, APIRoute))
        return f"path: got {path}, wanted one of {paths}; a client's base_url ends in /v1"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow")
        return f"method: got {request.method}, wanted {allowed} for {path}; send that"
    return error.detail


def _without_address(error: client.ClientError) -> str:
    """gRPC's messages for a dead server name sockets and files."""
    return "got no connection" if "connect" in error.message else error.message

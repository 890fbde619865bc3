"""Request ids, API keys, allowed hosts and the access log."""

from __future__ import annotations

import hmac
import logging
import os
import re
import time
import uuid
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fusewire.errors import ConfigurationError
from fusewire.serving.environment import API_KEY
from fusewire.serving.openai.connections import MOST_HEADER_BYTES
from fusewire.serving.openai.errors import ApiError, response
from fusewire.serving.openai.hosts import Hosts

HEALTH = "/health"  # called by load balancers, without a key
_MOST_KEYS_BYTES = 1 << 16
_KEY = re.compile(r"[!-~]{1,512}")  # valid in a header
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_AROUND_HEADER = 4  # bytes: colon, space and line break
_LONGEST_PATH = 200
_CLIENT_GONE = 499
_log = logging.getLogger("fusewire.access")


class ApiKeys:
    """The valid API keys, of which only digests are stored."""

    def __init__(self, keys: Sequence[str], source: str) -> None:
        """`source`: where the keys come from. Raises ConfigurationError, which never shows a key,
        where there is none or an invalid one."""
        if not keys or not all(map(_KEY.fullmatch, keys)):
            got = "a key that no header can carry" if keys else "no key"
            raise ConfigurationError(
                f"{source}: got {got}, wanted 1..512 printable ASCII characters without spaces; "
                "make one: openssl rand -hex 32"
            )
        self._digests = [_digest(key) for key in keys]

    @staticmethod
    def of(file: Path | None) -> ApiKeys | None:
        """Returns the keys of the file, one per line, otherwise that of the environment, otherwise
        None."""
        if file is None:
            key = os.environ.get(API_KEY)
            return None if key is None else ApiKeys([key], API_KEY)
        try:
            with file.open("rb") as opened:
                text = opened.read(_MOST_KEYS_BYTES + 1)
        except OSError as error:
            raise ConfigurationError(
                f"api-key-file: got {file} ({error.strerror or error}), wanted a file that can be "
                "read; give its path"
            ) from None
        if len(text) > _MOST_KEYS_BYTES:
            raise ConfigurationError(
                f"api-key-file: got over {_MOST_KEYS_BYTES} bytes, wanted a key a line; shorten it"
            )
        lines = text.decode(errors="replace").splitlines()
        return ApiKeys([line.strip() for line in lines if line.strip()], "api-key-file")

    def admit(self, authorization: str | None) -> bool:
        """Whether a header `Authorization` has a valid key. The time taken reveals nothing about
        the keys."""
        scheme, _, key = (authorization or "").partition(" ")
        sent = _digest(key.strip())
        found = [hmac.compare_digest(sent, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(found)


class Access:
    """Wraps the app with the checks of every request. Every response has the id of its request, and
    every request is logged, whatever its outcome."""

    def __init__(self, app: ASGIApp, keys: ApiKeys | None, hosts: Hosts, log: bool) -> None:
        self._app = app
        self._keys = keys
        self._hosts = hosts
        self._logs = log
        if log:
            _log.setLevel(logging.INFO)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        scope.setdefault("state", {})  # routes put the values for the log here
        began, status = time.perf_counter(), _CLIENT_GONE

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        # Routes support only GET. uvicorn drops the body of a response to HEAD.
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            await self._admitted(scope, headers)(asked, receive, send_with_id)
        finally:
            if self._logs:
                self._write(scope, status, time.perf_counter() - began, request_id)

    def _admitted(self, scope: Scope, headers: Headers) -> ASGIApp:
        # uvicorn limits only headers that arrive in several pieces.
        size_bytes = sum(len(name) + len(value) + _AROUND_HEADER for name, value in headers.raw)
        if size_bytes > MOST_HEADER_BYTES:
            message = (
                f"headers: got {size_bytes} bytes, wanted at most {MOST_HEADER_BYTES}; send fewer, "
                "or shorter ones"
            )
            return response(ApiError(400, message))
        if (refusal := self._hosts.refusal(headers)) is not None:
            return response(refusal)
        if self._keys is None or scope["path"] == HEALTH:
            return self._app
        authorization = headers.get("authorization")
        if self._keys.admit(authorization):
            return self._app
        got = "none" if authorization is None else "one that is not valid"
        message = f"Authorization: got {got}, wanted `Bearer KEY`; set the client's API key"
        return response(ApiError(401, message, code="invalid_api_key"))

    def _write(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        call = scope["state"].get("call")
        usage = {} if call is None else call.usage
        # In its encoded form, which has no line breaks, and without the query, which may have
        # private data.
        path = scope.get("raw_path", b"").decode("ascii", "replace")[:_LONGEST_PATH]
        fields: dict[str, Any] = {
            "method": scope["method"],
            "path": path,
            "status": status,
            "ms": round(seconds * 1000, 1),
            "model": None if call is None else call.model,
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"),
            "request_id": request_id,
        }
        level = logging.DEBUG if path == HEALTH and status == 200 else logging.INFO
        known = {name: value for name, value in fields.items() if value is not None}
        _log.log(level, "request", extra={"fields": known})


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()

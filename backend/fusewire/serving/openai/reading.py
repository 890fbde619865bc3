"""Reads and checks bodies in bounded time and memory, large ones outside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from fusewire.errors import InvalidInput
from fusewire.serving.openai import answering, errors, memory
from fusewire.serving.openai.connections import Connection
from fusewire.serving.openai.errors import ApiError
from fusewire.serving.openai.forms import form_fields
from fusewire.text.bounded_json import read_object
from fusewire.text.conversation import MOST_NESTING

# Enough for a conversation of the longest supported length, or for two thousand texts to embed.
MOST_BODY_BYTES = 1 << 24
# An audio file of OpenAI's maximum size, and other fields.
MOST_UPLOAD_BYTES = (25 << 20) + (1 << 16)
# Shorter bodies are checked within a millisecond, in the event loop: switching to a thread and back
# would take as long.
SHORT_BYTES = 1 << 16
# In all requests in flight in total. Short bodies do not count, so that large ones do not block
# them.
MOST_TOTAL_BYTES = 1 << 27
# Time limit of a body, plus the time that its bytes take at the least rate.
BODY_TIMEOUT_S = 10.0
LEAST_BYTES_PER_S = 1 << 16

# Parsing a large body takes several times its size in memory, so few are parsed at once.
_PARSERS = ThreadPoolExecutor(2, "large-body")
_TOO_LARGE = (
    f"body: got over {MOST_BODY_BYTES} bytes, wanted at most as many; send several requests"
)
_UPLOAD_TOO_LARGE = (
    f"file: got a body of over {MOST_UPLOAD_BYTES} bytes, wanted at most as many; compress the "
    "audio, send it in parts, or send it to Triton"
)
_TOO_MANY = (
    f"body: got one for which there is no room, wanted at most {MOST_TOTAL_BYTES} bytes of bodies "
    "in flight; try again later"
)
_TOO_SLOW = (
    f"body: got {{}} bytes in {{:.0f}} s, wanted all within {BODY_TIMEOUT_S:.0f} s, or at least "
    f"{LEAST_BYTES_PER_S} bytes a second; send it faster"
)


class Bodies:
    """The memory for bodies, shared by all requests."""

    def __init__(self, most_bytes: int = MOST_TOTAL_BYTES) -> None:
        self._most_bytes = self._free_bytes = most_bytes

    @contextlib.contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yields a function that takes bytes for one request. It raises ApiError where none are
        left."""
        received = taken = 0

        def take(size: int) -> None:
            nonlocal received, taken
            received += size
            more = max(received - SHORT_BYTES, 0) - taken
            if more > self._free_bytes:
                raise ApiError(503, _TOO_MANY, code="too_many_bytes")
            taken += more
            self._free_bytes -= more

        try:
            yield take
        finally:
            self._free_bytes += taken
            if taken and self._free_bytes == self._most_bytes:
                asyncio.get_running_loop().call_later(1, _PARSERS.submit, memory.trim)


class BoundedRoute(APIRoute):
    """Reads bodies within limits, and sends nothing to clients that have disconnected."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        model: Any = None if self.body_field is None else self.body_field.field_info.annotation

        async def handle_bounded(request: Request) -> Response:
            call = request.state.call = request.app.state.in_flight.begin()
            bounded = BoundedRequest(request, model)
            try:
                return await call.unless_ended(lambda: handle(bounded))
            except Exception as error:
                # FastAPI replaces an error while a body is read by its own.
                if isinstance(error, answering.ClientGone) or bounded.client_left:
                    return Response(status_code=499)
                raise

        return handle_bounded


class BoundedRequest(Request):
    """Reads JSON as strictly as a model reads its parameters, or a form with a file, up to a size
    limit."""

    def __init__(self, request: Request, model: type[BaseModel] | None) -> None:
        """`model`: the type of the route's bodies."""
        super().__init__(request.scope, request.receive)
        self._model = model
        self._received = bytearray()
        self.client_left = False  # before its whole body was received

    async def body(self) -> bytes:
        """Returns the first byte of the body. FastAPI only checks that there is one, and would keep
        the whole body in memory."""
        kind, main, sub = self._kind()
        if main != "application" or not (sub == "json" or sub.endswith("+json")):
            # Browsers let any page send other types without asking the endpoint first.
            raise ApiError(400, errors.not_json(kind))
        await self._receive_all(MOST_BODY_BYTES, _TOO_LARGE)
        if not self._received:
            raise ApiError(400, errors.NO_OBJECT)
        return bytes(self._received[:1])

    async def json(self) -> BaseModel:
        """Returns the body after checking it. FastAPI accepts an instance as it is."""
        try:
            if len(self._received) < SHORT_BYTES:
                return self._checked()
            return await asyncio.get_running_loop().run_in_executor(_PARSERS, self._checked)
        except InvalidInput as error:
            raise errors.of(error) from None
        except ValidationError as error:
            raise errors.invalid(error) from None

    async def upload(self) -> list[tuple[str, str | bytes]]:
        """Returns the fields of a form, and the bytes of its file. Browsers let a page of another
        origin send a form without asking; `Hosts` refuses such a request."""
        kind, main, sub = self._kind()
        if (main, sub) != ("multipart", "form-data"):
            raise ApiError(400, errors.no_form(kind))
        await self._receive_all(MOST_UPLOAD_BYTES, _UPLOAD_TOO_LARGE)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(_PARSERS, form_fields, self.headers, self._received)
        finally:
            self._received.clear()

    def _kind(self) -> tuple[str, str, str]:
        """Returns the type of the body: as it is written, and its two parts. Raises ApiError for a
        compressed body."""
        coding = self.headers.get("content-encoding", "identity")
        if coding.lower() not in ("", "identity"):
            raise ApiError(400, errors.packed(coding))
        kind = self.headers.get("content-type", "none")
        main, _, sub = kind.partition(";")[0].strip().lower().partition("/")
        return kind, main, sub

    async def _receive_all(self, most_bytes: int, too_large: str) -> None:
        length = self.headers.get("content-length", "")
        if length.isdecimal() and int(length) > most_bytes:
            raise ApiError(413, too_large, code="request_too_large")
        connection: Connection = self.state.connection
        with connection.body():
            try:
                await self._receive_within_time(most_bytes, too_large)
            except BaseException:
                self._received.clear()  # the error's traceback would keep it in memory
                raise

    async def _receive_within_time(self, most_bytes: int, too_large: str) -> None:
        take: Callable[[int], None] = self.state.take_bytes
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S) as limit:
                async for chunk in self.stream():
                    take(len(chunk))
                    self._received += chunk
                    if len(self._received) > most_bytes:
                        raise ApiError(413, too_large, code="request_too_large")
                    more_s = len(self._received) / LEAST_BYTES_PER_S
                    limit.reschedule(began + BODY_TIMEOUT_S + more_s)
        except ClientDisconnect:
            self.client_left = True
            raise
        except TimeoutError:
            took_s = asyncio.get_running_loop().time() - began
            message = _TOO_SLOW.format(len(self._received), took_s)
            raise ApiError(408, message, code="request_timeout") from None

    def _checked(self) -> BaseModel:
        assert self._model is not None
        try:
            value = read_object("body", self._received, MOST_BODY_BYTES, MOST_NESTING)
        finally:
            self._received.clear()
        return self._model.model_validate(value)

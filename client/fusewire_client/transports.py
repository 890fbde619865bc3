"""The four transports of a call: gRPC and HTTP, blocking and on asyncio. They only send and
receive; the wires encode and decode.

Threads may share the blocking ones (gRPC channels and urllib3 pools are thread-safe).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Protocol

import aiohttp  # with urllib3, what tritonclient[http] itself depends on
import grpc
import urllib3
from tritonclient.grpc import service_pb2_grpc

from . import grpc_wire, http_wire
from .calls import Call, Infer
from .errors import Cancelled, ClientError, DeadlineExceeded, InvalidArgument
from .triton_errors import CLOSED, from_grpc
from .wrong_port import grpc_fault, http_fault

_CHUNK_BYTES = 1 << 16


class Transport(Protocol):
    """Sends one call at a time per caller."""

    def send(self, call: Call, timeout_s: float) -> Any: ...
    def stream(self, call: Infer, timeout_s: float) -> Iterator[Any]: ...
    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """Sends any number of concurrent calls on one event loop."""

    async def send(self, call: Call, timeout_s: float) -> Any: ...
    def stream(self, call: Infer, timeout_s: float) -> AsyncGenerator[Any]: ...
    async def close(self) -> None: ...


def _host(address: str) -> str:
    if "://" in address or not re.search(r":\d+/?$", address):
        raise InvalidArgument(
            f"address: got {address!r}, wanted host:port; choose by protocol= and tls="
        )
    return address.rstrip("/")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the lines of a chunked text, each as soon as it is complete."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    yield rest


def _late(timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"timeout: got no answer within {timeout_s:.3g} s; wait longer, or look at the server's "
        "load"
    )


class _Grpc:
    """What both gRPC transports share: a channel with its stub, and the errors of calls."""

    _channels: Any  # the module that creates channels

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        target, options = _host(address), grpc_wire.CHANNEL_OPTIONS
        self._channel = (
            self._channels.secure_channel(target, grpc.ssl_channel_credentials(), options)
            if tls
            else self._channels.insecure_channel(target, options)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._target = "" if tls else target

    def _fault(self, error: Any) -> ClientError:
        """Returns the error of a call. `_target` is empty with TLS, where the port cannot be
        probed."""
        found = from_grpc(error.code().name, error.details() or str(error))
        return grpc_fault(found, self._target) if self._target else found


class GrpcTransport(_Grpc):
    """Blocking gRPC."""

    _channels = grpc

    def send(self, call: Call, timeout_s: float) -> Any:
        method, request = grpc_wire.encode(call)
        try:
            message = getattr(self._stub, method)(
                request, timeout=timeout_s, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise self._fault(error) from None
        return grpc_wire.decode(call, message)

    def stream(self, call: Infer, timeout_s: float) -> Iterator[Any]:
        """Yields the responses of a call as they arrive; leaving early cancels it."""
        _, request = grpc_wire.encode(call)
        messages = self._stub.ModelStreamInfer(
            iter([request]), timeout=timeout_s, metadata=self._metadata
        )
        try:
            for message in messages:
                if (outputs := grpc_wire.streamed(message)) is not None:
                    yield outputs
        except grpc.RpcError as error:
            raise self._fault(error) from None
        finally:
            messages.cancel()

    def close(self) -> None:
        self._channel.close()


class AsyncGrpcTransport(_Grpc):
    """gRPC on asyncio. Cancelling the task cancels the request on the server.

    grpcio frees the memory of an operation, and a message that it received, only if the task that
    waits for it is not cancelled (https://github.com/grpc/grpc/issues/43360). So the calls are
    cancelled, which ends their operations at once, and not the tasks. What remains: it never frees
    that in which a stream that is left waits for its first response.
    """

    _channels = grpc.aio

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        super().__init__(address, tls, headers, connections)
        # One request per stream: sent with its end, in one operation.
        self._open = self._channel.unary_stream(*grpc_wire.STREAM)
        self._closed = False

    async def send(self, call: Call, timeout_s: float) -> Any:
        method, request = grpc_wire.encode(call)
        sent = getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        try:
            message = await asyncio.shield(sent)
        except asyncio.CancelledError:
            _cancel(sent)
            self._tell_closed()
            raise
        except grpc.RpcError as error:
            raise await asyncio.to_thread(self._fault, error) from None
        return grpc_wire.decode(call, message)

    async def stream(self, call: Infer, timeout_s: float) -> AsyncGenerator[Any]:
        """Yields the responses of a call as they arrive; leaving early cancels it."""
        _, request = grpc_wire.encode(call)
        messages = self._open(request, timeout=timeout_s, metadata=self._metadata)
        arriving = aiter(messages)
        try:
            while (message := await asyncio.shield(anext(arriving, None))) is not None:
                if (outputs := grpc_wire.streamed(message)) is not None:
                    yield outputs
        except asyncio.CancelledError:
            self._tell_closed()
            raise
        except grpc.RpcError as error:
            raise await asyncio.to_thread(self._fault, error) from None
        finally:
            messages.cancel()

    async def close(self) -> None:
        self._closed = True
        await self._channel.close()

    def _tell_closed(self) -> None:
        """Raises Cancelled where a CancelledError is the channel's, which was closed, and not the
        caller's."""
        task = asyncio.current_task()
        if self._closed and not (task and task.cancelling()):
            raise Cancelled(CLOSED) from None


def _cancel(call: Any) -> None:
    """Cancels a call for one answer, but not the task in which grpcio waits for the answer, as its
    public `cancel` does."""
    getattr(call, "_cancel", lambda _: call.cancel())("the caller left")


class HttpTransport:
    """Blocking HTTP on a pool of persistent connections."""

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        self._base = ("https://" if tls else "http://") + _host(address)
        self._pool = urllib3.PoolManager(maxsize=connections, block=True, retries=False)
        self._headers = headers
        self._streams: set[Any] = set()  # responses that are being read
        self._closed = False

    def send(self, call: Call, timeout_s: float) -> Any:
        with self._faults(timeout_s):
            response = self._request(http_wire.encode(call), timeout_s)
        return http_wire.decode(call, response.status, dict(response.headers), response.data)

    def stream(self, call: Infer, timeout_s: float) -> Iterator[Any]:
        """Yields the responses of a call as they arrive; leaving early closes its connection, which
        cancels the call."""
        ends = time.monotonic() + timeout_s
        with self._faults(timeout_s):
            response = self._request(
                http_wire.encode_stream(call), timeout_s, preload_content=False
            )
        self._streams.add(response)
        try:
            with self._faults(timeout_s):
                for line in _lines(response.stream(_CHUNK_BYTES)):
                    if (outputs := http_wire.streamed(response.status, line)) is not None:
                        yield outputs
                    if time.monotonic() > ends:
                        raise _late(timeout_s)
        finally:
            self._streams.discard(response)
            response.close()
            response.release_conn()

    def _request(self, request: http_wire.HttpRequest, timeout_s: float, **more: Any) -> Any:
        return self._pool.request(
            request.method,
            self._base + request.path,
            body=request.body,
            headers={**self._headers, **request.headers},
            timeout=urllib3.Timeout(total=timeout_s),
            pool_timeout=timeout_s,
            redirect=False,
            **more,
        )

    @contextlib.contextmanager
    def _faults(self, timeout_s: float) -> Iterator[None]:
        try:
            yield
        except (urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.EmptyPoolError):
            raise _late(timeout_s) from None
        except urllib3.exceptions.NewConnectionError as error:
            raise http_fault(error, self._base) from None
        except urllib3.exceptions.ConnectTimeoutError:
            raise _late(timeout_s) from None
        except urllib3.exceptions.HTTPError as error:
            raise Cancelled(CLOSED) if self._closed else http_fault(error, self._base) from None

    def close(self) -> None:
        self._closed = True
        for response in [*self._streams]:  # the pool closes idle connections only
            with contextlib.suppress(ValueError, RuntimeError):  # it has ended
                response.shutdown()
        self._pool.clear()


class AsyncHttpTransport:
    """HTTP on asyncio."""

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        self._base = ("https://" if tls else "http://") + _host(address)
        self._connections = connections
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None

    async def send(self, call: Call, timeout_s: float) -> Any:
        with self._faults(timeout_s):
            async with self._request(http_wire.encode(call), timeout_s) as response:
                body = await response.read()
        return http_wire.decode(call, response.status, dict(response.headers), body)

    async def stream(self, call: Infer, timeout_s: float) -> AsyncGenerator[Any]:
        """Yields the responses of a call as they arrive; leaving early closes its connection, which
        cancels the call."""
        with self._faults(timeout_s):
            async with self._request(http_wire.encode_stream(call), timeout_s) as response:
                rest = b""
                async for chunk in response.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        if (outputs := http_wire.streamed(response.status, line)) is not None:
                            yield outputs
                # An error's body does not end with a newline.
                http_wire.streamed(response.status, rest)

    def _request(self, request: http_wire.HttpRequest, timeout_s: float) -> Any:
        if self._session is None:  # aiohttp needs a running loop, which a constructor does not have
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections)
            )
        return self._session.request(
            request.method,
            self._base + request.path,
            data=request.body,
            headers={**self._headers, **request.headers},
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            allow_redirects=False,
        )

    @contextlib.contextmanager
    def _faults(self, timeout_s: float) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise _late(timeout_s) from None
        except (aiohttp.ClientError, RuntimeError) as error:
            if self._session is not None and self._session.closed:  # often a bare RuntimeError
                raise Cancelled(CLOSED) from None
            if isinstance(error, RuntimeError):
                raise
            raise http_fault(error, self._base) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

"""The four ways to carry a call: gRPC and HTTP, blocking and on asyncio. Each is as thin as its
library allows; all words and shapes are made in the wires.

The blocking ones may be shared by threads (gRPC channels and urllib3 pools are thread-safe).
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import aiohttp  # with urllib3, what tritonclient[http] itself stands on
import grpc
import urllib3
from tritonclient.grpc import service_pb2_grpc

from . import grpc_wire, http_wire
from .calls import Call
from .errors import DeadlineExceeded, InvalidArgument, Unavailable, from_grpc


class Transport(Protocol):
    """Carries one call at a time per caller."""

    def send(self, call: Call, timeout_s: float) -> Any: ...
    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """Carries any number of calls on one event loop."""

    async def send(self, call: Call, timeout_s: float) -> Any: ...
    async def close(self) -> None: ...


def _host(address: str) -> str:
    if "://" in address or not re.search(r":\d+/?$", address):
        raise InvalidArgument(
            f"address: got {address!r}, wanted host:port; choose by protocol= and tls="
        )
    return address.rstrip("/")


def _metadata(headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in headers.items())


def _late(timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"timeout_s: got no answer in {timeout_s:.3f} s")


class GrpcTransport:
    """Blocking gRPC."""

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        target, options = _host(address), grpc_wire.CHANNEL_OPTIONS
        self._channel = (
            grpc.secure_channel(target, grpc.ssl_channel_credentials(), options)
            if tls
            else grpc.insecure_channel(target, options)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = _metadata(headers)

    def send(self, call: Call, timeout_s: float) -> Any:
        method, request = grpc_wire.encode(call)
        try:
            message = getattr(self._stub, method)(
                request, timeout=timeout_s, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise from_grpc(error.code().name, error.details() or str(error)) from None
        return grpc_wire.decode(call, message)

    def close(self) -> None:
        self._channel.close()


class AsyncGrpcTransport:
    """gRPC on asyncio. Cancelling the task cancels the request on the server."""

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        target, options = _host(address), grpc_wire.CHANNEL_OPTIONS
        self._channel = (
            grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options)
            if tls
            else grpc.aio.insecure_channel(target, options)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = _metadata(headers)

    async def send(self, call: Call, timeout_s: float) -> Any:
        method, request = grpc_wire.encode(call)
        try:
            message = await getattr(self._stub, method)(
                request, timeout=timeout_s, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise from_grpc(error.code().name, error.details() or str(error)) from None
        return grpc_wire.decode(call, message)

    async def close(self) -> None:
        await self._channel.close()


class HttpTransport:
    """Blocking HTTP on a pool of kept-alive connections."""

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        self._base = ("https://" if tls else "http://") + _host(address)
        self._pool = urllib3.PoolManager(maxsize=connections, block=True, retries=False)
        self._headers = headers

    def send(self, call: Call, timeout_s: float) -> Any:
        request = http_wire.encode(call)
        try:
            response = self._pool.request(
                request.method,
                self._base + request.path,
                body=request.body,
                headers={**self._headers, **request.headers},
                timeout=urllib3.Timeout(total=timeout_s),
                pool_timeout=timeout_s,
                redirect=False,
            )
        except (urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.EmptyPoolError):
            raise _late(timeout_s) from None
        except urllib3.exceptions.NewConnectionError as error:
            raise Unavailable(f"{self._base}: {error}") from None
        except urllib3.exceptions.ConnectTimeoutError:
            raise _late(timeout_s) from None
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"{self._base}: {error}") from None
        return http_wire.decode(call, response.status, dict(response.headers), response.data)

    def close(self) -> None:
        self._pool.clear()


class AsyncHttpTransport:
    """HTTP on asyncio."""

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        self._base = ("https://" if tls else "http://") + _host(address)
        self._connections = connections
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None

    async def send(self, call: Call, timeout_s: float) -> Any:
        if self._session is None:  # aiohttp wants the running loop, a constructor has none
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections)
            )
        request = http_wire.encode(call)
        try:
            async with self._session.request(
                request.method,
                self._base + request.path,
                data=request.body,
                headers={**self._headers, **request.headers},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as response:
                body = await response.read()
        except TimeoutError:
            raise _late(timeout_s) from None
        except aiohttp.ClientError as error:
            raise Unavailable(f"{self._base}: {error}") from None
        return http_wire.decode(call, response.status, dict(response.headers), body)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

"""HTTP, blocking and on asyncio."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import aiohttp  # with urllib3, what tritonclient[http] itself depends on
import urllib3

from . import http_wire
from .calls import Call, Infer
from .errors import Cancelled
from .transports import Leaving, host_of, kept, late
from .triton_errors import CLOSED
from .waiting import POOLS, Waiting
from .wrong_port import http_fault

_CHUNK_BYTES = 1 << 16


class HttpTransport:
    """Blocking HTTP on a pool of persistent connections."""

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        self._base = ("https://" if tls else "http://") + host_of(address)
        self._pool = urllib3.PoolManager(maxsize=connections, block=True, retries=False)
        self._pool.pool_classes_by_scheme = POOLS
        self._headers = headers
        self._waits: set[Waiting] = set()
        self._streams: set[Any] = set()  # responses that are being read
        self._closed = False

    def send(self, call: Call, timeout_s: float) -> Any:
        with self._faults(timeout_s):
            response = self._request(http_wire.encode(call), timeout_s)
        return http_wire.decode(call, response.status, dict(response.headers), response.data)

    def stream(self, call: Infer, timeout_s: float, leaving: Leaving = kept) -> Iterator[Any]:
        """Yields the responses of a call as they arrive; leaving early closes its connection, which
        cancels the call."""
        ends = time.monotonic() + timeout_s
        with self._faults(timeout_s):
            response = self._request(
                http_wire.encode_stream(call), timeout_s, leaving, preload_content=False
            )
        self._streams.add(response)
        try:
            with self._faults(timeout_s), leaving(lambda: _shut_down(response)):
                for line in _lines(response.stream(_CHUNK_BYTES)):
                    if (outputs := http_wire.streamed(response.status, line)) is not None:
                        yield outputs
                    if time.monotonic() > ends:
                        raise late(timeout_s)
        finally:
            self._streams.discard(response)
            response.close()
            response.release_conn()

    def _request(
        self,
        request: http_wire.HttpRequest,
        timeout_s: float,
        leaving: Leaving = kept,
        **more: Any,
    ) -> Any:
        with self._waiting() as waiting, leaving(waiting.end):
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
    def _waiting(self) -> Iterator[Waiting]:
        with Waiting() as waiting:
            self._waits.add(waiting)
            if self._closed:
                waiting.end()
            try:
                yield waiting
            finally:
                self._waits.discard(waiting)

    @contextlib.contextmanager
    def _faults(self, timeout_s: float) -> Iterator[None]:
        try:
            yield
        except (urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.EmptyPoolError):
            raise late(timeout_s) from None
        except urllib3.exceptions.NewConnectionError as error:
            raise http_fault(error, self._base) from None
        except urllib3.exceptions.ConnectTimeoutError:
            raise late(timeout_s) from None
        except urllib3.exceptions.HTTPError as error:
            raise Cancelled(CLOSED) if self._closed else http_fault(error, self._base) from None

    def close(self) -> None:
        self._closed = True
        for waiting in [*self._waits]:  # the pool closes idle connections only
            waiting.end()
        for response in [*self._streams]:
            _shut_down(response)
        self._pool.clear()


def _shut_down(response: Any) -> None:
    """Ends a response that another thread reads."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # it has ended
        response.shutdown()


class AsyncHttpTransport:
    """HTTP on asyncio."""

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        self._base = ("https://" if tls else "http://") + host_of(address)
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
            raise late(timeout_s) from None
        except (aiohttp.ClientError, RuntimeError) as error:
            if self._session is not None and self._session.closed:  # often a bare RuntimeError
                raise Cancelled(CLOSED) from None
            if isinstance(error, RuntimeError):
                raise
            raise http_fault(error, self._base) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the lines of a chunked text, each as soon as it is complete."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    yield rest

"""urllib3 connections whose wait for a response can be ended by another thread.

urllib3 can end a response that is being read (`HTTPResponse.shutdown`), not the wait for one.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextvars import ContextVar, Token
from typing import Any, ClassVar

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class Waiting:
    """While it is entered, the wait of this thread's request for the beginning of its response."""

    _of_thread: ClassVar[ContextVar[Waiting]] = ContextVar("waiting")

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._ended = False
        self._before: Token[Waiting]

    def __enter__(self) -> Waiting:
        self._before = self._of_thread.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._of_thread.reset(self._before)

    def end(self) -> None:
        """Ends it, also one that has not begun, with an error of the connection. Called from any
        thread."""
        self._ended = True  # before the socket is looked at, as `at` sets that first
        if (waits_at := self._socket) is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended
                waits_at.shutdown(socket.SHUT_RDWR)

    @classmethod
    @contextlib.contextmanager
    def at(cls, waits_at: socket.socket | None) -> Iterator[None]:
        """While it is entered, the request of this thread waits at a connection's socket."""
        waiting = cls._of_thread.get()
        waiting._socket = waits_at
        if waiting._ended:
            waiting.end()
        try:
            yield
        finally:
            waiting._socket = None


class _Plain(HTTPConnection):
    def getresponse(self) -> Any:
        with Waiting.at(self.sock):
            return super().getresponse()


class _Secure(_Plain, HTTPSConnection):
    pass


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _Secure


# urllib3.PoolManager.pool_classes_by_scheme
POOLS = {"http": _PlainPool, "https": _SecurePool}

"""The endpoint's connections: their maximum number, and how long a client may keep one without
sending or reading anything.

uvicorn itself closes only connections that are idle between two requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
from collections.abc import Iterator
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

# Each request has its own connection, so this also limits the requests in flight.
MOST_CONNECTIONS = 1024
MOST_HEADER_BYTES = 1 << 15
HEADER_TIMEOUT_S = 10.0  # from connecting, or from the last answer, to the end of the headers
# Per iteration of the event loop, which may accept a few times as many before the first is counted.
ACCEPTED_AT_ONCE = 16
KEEP_ALIVE_S = 5  # part of HEADER_TIMEOUT_S without any byte
# A client that reads less than LEAST_READ_BYTES within this time is disconnected.
READ_TIMEOUT_S = 30.0
LEAST_READ_BYTES = 1 << 18
_SWEEP_S = 1.0


class Connections:
    """The open connections of one server. Connections that wait for their client are closed after a
    timeout, or when another one needs their place: the longest waiting first."""

    def __init__(self) -> None:
        # Models' files, gRPC and newly accepted connections need file descriptors too.
        self.most = min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, float] = {}  # deadline, the longest waiting first
        self._unread: dict[Connection, tuple[float, int]] = {}  # deadline, unread bytes
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """Whether there are more connections than allowed; all others have requests being
        answered."""
        return len(self._open) > self.most

    def opened(self, connection: Connection) -> None:
        if self.full or len(self._open) == self.most:
            for longest in list(self._waiting)[:1]:
                longest.abort()
                self.lost(longest)
        self._open.add(connection)
        self.wait(connection, HEADER_TIMEOUT_S)
        if self._sweeper is None:
            self._sweep()

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self._unread.pop(connection, None)

    def wait(self, connection: Connection, timeout_s: float) -> None:
        """The connection waits for bytes of its client."""
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._waiting[connection] = _now() + timeout_s

    def work(self, connection: Connection) -> None:
        """The client waits for the server."""
        self._waiting.pop(connection, None)

    def unread(self, connection: Connection) -> None:
        """The client has not read what was sent."""
        self._unread[connection] = _now() + READ_TIMEOUT_S, connection.unread_bytes

    def read(self, connection: Connection) -> None:
        self._unread.pop(connection, None)

    def _sweep(self) -> None:
        now = _now()
        for connection, (until, size) in list(self._unread.items()):
            if now > until:
                if connection.unread_bytes > size - LEAST_READ_BYTES:
                    connection.abort()
                else:
                    self.unread(connection)
        for connection, until in list(self._waiting.items()):
            if now > until and connection not in self._unread:
                connection.close()
                self.wait(connection, HEADER_TIMEOUT_S)  # to read the end of an answer
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep) if self._open else None


class Connection(H11Protocol):
    """One connection. The state of its requests has it as `connection`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`app_state`: has `connections`, from the app's lifespan."""
        super().__init__(config, server_state, app_state | {"connection": self}, _loop)
        self._all: Connections = app_state["connections"]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.lost(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._all.unread(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._all.read(self)

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing, as any client may send many WebSocket requests. They are answered like HTTP
        requests."""

    @property
    def refused(self) -> bool:
        """Whether its request is refused because there are too many connections."""
        return self._all.full

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Context in which a request of the connection is in flight."""
        self._all.work(self)
        try:
            yield
        finally:
            self._all.wait(self, HEADER_TIMEOUT_S)

    @contextlib.contextmanager
    def body(self) -> Iterator[None]:
        """Context in which a body is awaited, for as long as its reader allows."""
        self._all.wait(self, math.inf)
        try:
            yield
        finally:
            self._all.work(self)

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that were sent and are still in this process."""
        return self.transport.get_write_buffer_size()

    def close(self) -> None:
        """Closes the connection once everything is sent; at once if it is already closing."""
        if self.transport.is_closing():
            self.transport.abort()
        self.transport.close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self.transport.abort()


def _now() -> float:
    return asyncio.get_running_loop().time()

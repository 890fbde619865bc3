"""A transport carries a call: gRPC and HTTP, blocking and on asyncio. They only send and receive;
the wires encode and decode.

Threads may share the blocking ones (gRPC channels and urllib3 pools are thread-safe).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .calls import Call, Infer
from .errors import DeadlineExceeded, InvalidArgument

# leaving(leave): while its context lasts, another thread may call `leave` to end the stream.
Leaving = Callable[[Callable[[], object]], AbstractContextManager[None]]


def kept(_: Callable[[], object]) -> AbstractContextManager[None]:
    """A `Leaving` that ends no stream."""
    return contextlib.nullcontext()


class Transport(Protocol):
    """Sends one call at a time per caller."""

    def send(self, call: Call, timeout_s: float) -> Any: ...
    def stream(self, call: Infer, timeout_s: float, leaving: Leaving = kept) -> Iterator[Any]: ...
    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """Sends any number of concurrent calls on one event loop."""

    async def send(self, call: Call, timeout_s: float) -> Any: ...
    def stream(self, call: Infer, timeout_s: float) -> AsyncGenerator[Any]: ...
    async def close(self) -> None: ...


def host_of(address: str) -> str:
    """Returns host:port. Raises InvalidArgument for what is no address, and for a URL."""
    if "://" in address or not re.search(r":\d+/?$", address):
        raise InvalidArgument(
            f"address: got {address!r}, wanted host:port; choose by protocol= and tls="
        )
    return address.rstrip("/")


def late(timeout_s: float) -> DeadlineExceeded:
    """Returns the error of a call that took longer than `timeout_s`."""
    return DeadlineExceeded(
        f"timeout: got no answer within {timeout_s:.3g} s; wait longer, or look at the server's "
        "load"
    )

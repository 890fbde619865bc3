"""Messages between a worker and its parent: a length, JSON of that length in UTF-8, and, if the
JSON has `body_bytes`, a `body` of that many bytes."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# Enough for the largest body that the endpoint accepts, with every character escaped in JSON.
MOST_BYTES = 1 << 27
_LENGTH = struct.Struct("!I")
_Part = TypeVar("_Part", bytes, int)


class BrokenMessage(Exception):
    """The peer sent something that is not a message, or (ConnectionClosed) closed the
    connection."""


class ConnectionClosed(BrokenMessage):
    """The peer closed the connection, perhaps within a message."""


def encoded(message: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a message. Lone surrogates are passed on: the worker reports what is
    wrong with them."""
    # One expression, so that a text of megabytes is not held twice.
    data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )
    return _LENGTH.pack(len(data)) + data


def receive(
    connection: socket.socket, deadline: float | None = None, most_body_bytes: int = MOST_BYTES
) -> Any:
    """Returns the next message. Raises TimeoutError at `deadline` (by time.monotonic()), and
    BrokenMessage."""
    (size,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, deadline))
    if size > MOST_BYTES:
        raise BrokenMessage(f"a message of {size} bytes")
    try:
        message = json.loads(_exactly(connection, size, deadline).decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise BrokenMessage("what is not JSON") from None
    if isinstance(message, dict) and "body_bytes" in message:
        size = message.pop("body_bytes")
        message["body"] = _body(connection, size, deadline, most_body_bytes)
    return message


def _body(
    connection: socket.socket, size: Any, deadline: float | None, most_bytes: int
) -> NDArray[np.uint8]:
    if not isinstance(size, int) or not 0 <= size <= most_bytes:
        raise BrokenMessage(f"a body of {size} bytes")
    body = np.empty(size, np.uint8)  # pages are allocated when they are written
    view, got = body.data, 0
    while got < size:
        got += _received(connection, deadline, lambda: connection.recv_into(view[got:]))  # noqa: B023
    return body


def _exactly(connection: socket.socket, size: int, deadline: float | None) -> bytearray:
    """Receives `size` bytes. The buffer grows with what arrives, since a peer may announce any
    length."""
    data = bytearray()
    while len(data) < size:
        missing = min(size - len(data), 1 << 20)
        data += _received(connection, deadline, lambda: connection.recv(missing))  # noqa: B023
    return data


def _received(
    connection: socket.socket, deadline: float | None, receive: Callable[[], _Part]
) -> _Part:
    """Returns what `receive` returns. Raises ConnectionClosed if that is empty."""
    if deadline is not None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
    try:
        part = receive()
    except ConnectionError as error:
        raise ConnectionClosed(str(error)) from None
    if not part:
        raise ConnectionClosed("the end of the connection")
    return part

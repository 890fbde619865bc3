"""Messages between a worker and its owner: JSON in UTF-8 behind its length."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

# A body as large as the endpoint takes, where JSON escapes each character.
MOST_BYTES = 1 << 27
_LENGTH = struct.Struct("!I")


class BrokenMessage(Exception):
    """The other end sent what is no message, or (ConnectionClosed) nothing any more."""


class ConnectionClosed(BrokenMessage):
    """The other end closed the connection, perhaps within a message."""


def encoded(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent. Lone surrogates pass: what is wrong with them the worker says."""
    # One expression, as a text of megabytes must not be held twice.
    data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )
    return _LENGTH.pack(len(data)) + data


def receive(connection: socket.socket, deadline: float | None = None) -> Any:
    """The next message. TimeoutError at `deadline` (by time.monotonic()), BrokenMessage."""
    (size,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, deadline))
    if size > MOST_BYTES:
        raise BrokenMessage(f"a message of {size} bytes")
    try:
        return json.loads(_exactly(connection, size, deadline).decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise BrokenMessage("what is not JSON") from None


def _exactly(connection: socket.socket, size: int, deadline: float | None) -> bytearray:
    """Grows with what arrives: a length is only a promise."""
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
        try:
            part = connection.recv(min(size - len(data), 1 << 20))
        except ConnectionError as error:
            raise ConnectionClosed(str(error)) from None
        if not part:
            raise ConnectionClosed("the end of the connection")
        data += part
    return data

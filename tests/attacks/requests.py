"""Requests as attackers and the witness send them, each over a connection of its own, and what
became of them."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusewire_client import Client
from fusewire_client.errors import ClientError, DeadlineExceeded

# How a request may end: with its answer; with an error that says what it is; without a connection;
# with a connection that broke; with no answer in time; with something else.
OK, TYPED, REFUSED, BROKEN, LATE, UNTYPED = "ok", "typed", "refused", "broken", "late", "untyped"


@dataclass(frozen=True)
class Outcome:
    """How a request ended, after how long, and with which words or status."""

    kind: str
    seconds: float
    text: str = ""
    status: int = 0


def post(
    address: str,
    path: str,
    body: bytes | dict[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> Outcome:
    """A POST over HTTP, to Triton or the OpenAI endpoint; a timeout is of each read."""
    began = time.monotonic()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        sent = {"Content-Type": "application/json"} | dict(headers or {})
        # An answer may stand there already: it was refused before the whole was sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", path, data, sent)
        answer = connection.getresponse()
        text = answer.read()
    except TimeoutError:
        return Outcome(LATE, time.monotonic() - began, f"no answer in {timeout_s:.0f} s")
    except ConnectionRefusedError:
        return Outcome(REFUSED, time.monotonic() - began)
    except (OSError, http.client.HTTPException) as error:
        return Outcome(BROKEN, time.monotonic() - began, type(error).__name__)
    finally:
        connection.close()
    return Outcome(*_kind(answer.status, text, time.monotonic() - began), answer.status)


def _kind(status: int, text: bytes, seconds: float) -> tuple[str, float, str]:
    words = text[:200].decode(errors="replace")
    if status == 200:
        return OK, seconds, words
    try:
        typed = bool(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        typed = False
    return TYPED if typed else UNTYPED, seconds, f"{status} {words}"


def over_grpc(
    address: str, model: str, prompt: str, tokens: int, timeout_s: float, retries: int = 0
) -> Outcome:
    """An embedding, or with `tokens` a text. `retries`: of the client, where it gets none."""
    began = time.monotonic()
    try:
        with Client(address, retries=retries, timeout_s=timeout_s) as client:
            if tokens:
                client.generate(prompt, model=model, max_new_tokens=tokens, ignore_eos=True)
            else:
                client.embed([prompt], model=model)
    except DeadlineExceeded:
        return Outcome(LATE, time.monotonic() - began, f"no answer in {timeout_s:.0f} s")
    except ClientError as error:
        return Outcome(TYPED, time.monotonic() - began, f"{error.status} {error.message}"[:200])
    return Outcome(OK, time.monotonic() - began)


def connected(address: str, receive_bytes: int = 0) -> socket.socket:
    """A bare connection; `receive_bytes`: of its buffer, for those that never read."""
    host, _, port = address.rpartition(":")
    made = socket.socket()
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(10)
    made.connect((host, int(port)))
    return made


def closed_by_peer(connection: socket.socket) -> bool:
    """Whether the other side ended it; what it sent before is thrown away."""
    connection.setblocking(False)
    try:
        while data := connection.recv(1 << 16):
            del data
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True

"""A client of the server's own HTTP interface, for the watchdog and the command line."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusewire.errors import ConfigurationError, FusewireError

CONTROL_HEADER = "fusewire-control-key"

# Proxies in the environment do not apply: the server is on this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class EndpointError(FusewireError):
    """A call failed. `status`: the HTTP status of the answer, 0 without an answer. `timed_out`:
    there was no answer in time."""

    def __init__(self, status: int, text: str, *, timed_out: bool = False) -> None:
        self.status = status
        self.timed_out = timed_out
        super().__init__(text)


@dataclass(frozen=True)
class Endpoint:
    """The address of a server."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int

    @property
    def reachable(self) -> str:
        """The host to call from this machine."""
        return "127.0.0.1" if self.host == "0.0.0.0" else self.host

    def call(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout_s: float = 5.0,
        control_key: str | None = None,
    ) -> Any:
        """Sends GET, or POST with a body. Returns the JSON answer, or None when it is empty. Raises
        EndpointError."""
        request = urllib.request.Request(
            f"http://{self.reachable}:{self.http_port}/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={CONTROL_HEADER: control_key} if control_key else {},
        )
        try:
            with _OPENER.open(request, timeout=timeout_s) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise EndpointError(error.code, _error_text(error.read())) from None
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)  # the cause of a URLError
            late = isinstance(cause, TimeoutError)
            raise EndpointError(0, f"no answer ({error})", timed_out=late) from None
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise EndpointError(0, f"no JSON in the answer ({text[:80]!r})") from None

    def metrics(self, timeout_s: float = 5.0) -> str:
        """Returns the metrics page."""
        url = f"http://{self.reachable}:{self.metrics_port}/metrics"
        with _OPENER.open(url, timeout=timeout_s) as answer:
            return str(answer.read().decode())


def choose_ports(host: str, ports: Sequence[tuple[str, int]], wait_s: float = 0.0) -> list[int]:
    """Returns the ports of (flag, port) pairs, with 0 replaced by a free port. Raises as
    `reserve`."""
    with reserve(host, ports, wait_s) as reserved:
        return reserved.ports


class Reserved:
    """Ports that the system assigns to no other process until `close`, while a server can listen on
    them: their sockets are bound with SO_REUSEADDR and do not listen. `address`: the IPv4 address
    of the host, as tritonserver does not listen on names."""

    def __init__(self, address: str, sockets: Sequence[socket.socket]) -> None:
        self.address = address
        self._sockets = sockets
        self.ports = [int(each.getsockname()[1]) for each in sockets]

    def __enter__(self) -> Reserved:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for each in self._sockets:
            each.close()


def reserve(host: str, ports: Sequence[tuple[str, int]], wait_s: float = 0.0) -> Reserved:
    """Reserves the ports of (flag, port) pairs, with 0 replaced by a free port. Raises
    ConfigurationError with a port that is given twice, or is still in use after `wait_s`."""
    if ":" in host:
        raise ConfigurationError(
            f"host: got {host}, wanted an IPv4 address or a name, as IPv6 is not supported; use "
            "127.0.0.1, or 0.0.0.0 for every address"
        )
    with socket.socket() as listener:
        try:
            listener.bind((host, 0))
        except OSError as error:
            raise ConfigurationError(
                f"host: got {host}, wanted an IPv4 address or a name of this machine "
                f"({error.strerror}); use 127.0.0.1, or 0.0.0.0 for every address"
            ) from None
        address = str(listener.getsockname()[0])
    first: dict[int, str] = {}
    for flag, port in ports:
        if port and first.setdefault(port, flag) != flag:
            raise ConfigurationError(
                f"{flag}: got {port}, wanted another port than {first[port]}; choose another, or 0 "
                "for any"
            )
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as opened:
        sockets = [
            opened.enter_context(bound(flag, address, port, deadline)) for flag, port in ports
        ]
        opened.pop_all()
    return Reserved(address, sockets)


def bound(flag: str, host: str, port: int, deadline: float = 0.0) -> socket.socket:
    """Returns a socket that is bound to the port, 0 for any, and does not listen yet. Raises
    ConfigurationError when the port is not free by `deadline`, a time of time.monotonic."""
    opened = socket.socket()
    # As in the server: a port whose last connections are still closing counts as free.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        _bind(opened, (host, port), deadline)
    except OSError as error:
        opened.close()
        raise ConfigurationError(
            f"{flag}: got {host}:{port}, wanted a free port ({error.strerror}); choose "
            f"another, or 0 for any"
        ) from None
    return opened


def _bind(listener: socket.socket, address: tuple[str, int], deadline: float) -> None:
    while True:
        try:
            return listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]

"""Errors for a client that connects to the other protocol's port."""

from __future__ import annotations

import socket

from .errors import ClientError, InvalidArgument, NoConnection, Unavailable

_PROBE_TIMEOUT_S = 1.0
# gRPC's messages for a server that accepts connections but speaks another protocol.
_NOT_GRPC = ("Socket closed", "Failed parsing HTTP/2", "http1.x server")
# How urllib3 and aiohttp report an answer that does not begin as HTTP's does.
_NOT_HTTP = ("BadStatusLine", "Bad status line")


def grpc_fault(error: ClientError, address: str) -> ClientError:
    """Returns the error of a gRPC call, or, where the address speaks HTTP, an error that says so.
    Blocks for a second at most."""
    suspect = isinstance(error, Unavailable) and any(sign in error.message for sign in _NOT_GRPC)
    if not suspect or not _speaks_http(address):
        return error
    return InvalidArgument(
        f"address: got {address}, which speaks HTTP, wanted a gRPC port (Triton's is 8001 by "
        "default); give that one, or protocol='http'"
    )


def http_fault(error: Exception, address: str) -> ClientError:
    """Returns the error of an HTTP exchange that had no answer."""
    if any(sign in repr(error) for sign in _NOT_HTTP):
        return InvalidArgument(
            f"address: got {address}, which does not speak HTTP, wanted an HTTP port (Triton's is "
            "8000 by default); give that one, or protocol='grpc'"
        )
    reason = error.__cause__ or error  # urllib3's own words begin with the repr of an object
    return NoConnection(
        f"{address}: got no connection ({reason}), wanted a server; start it or correct the address"
    )


def _speaks_http(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_TIMEOUT_S) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            probe.sendall(b"GET /v2/health/ready HTTP/1.0\r\n\r\n")
            return probe.recv(5) == b"HTTP/"
    except OSError:
        return False

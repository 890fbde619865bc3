"""What of a server other machines can reach: ports without authentication, and keys."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence

from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.environment import API_KEY, variable


def warning(settings: ServerSettings, at: Endpoint, openai_address: str | None) -> str | None:
    """Returns a warning with the ports that others can reach and a remedy, or None on loopback."""
    if is_loopback(at.host):
        return None
    ports = [f"{at.http_port} (HTTP)", f"{at.grpc_port} (gRPC)", f"{at.metrics_port} (metrics)"]
    remedy = "put a gateway with TLS and authentication in front, or use --host 127.0.0.1"
    if openai_address is not None and not _keyed(settings):
        ports.append(f"{openai_address.rpartition(':')[2]} (OpenAI)")
        remedy += f", and set {API_KEY} or --api-key-file for the OpenAI endpoint"
    return (
        f"host {at.host}: anyone who reaches this machine may use the ports {', '.join(ports)}, "
        f"without authentication and unencrypted; {remedy}"
    )


def idle_key(settings: ServerSettings, openai_address: str | None) -> str | None:
    """Returns a warning for an API key that no port asks for, or None."""
    if openai_address is not None or not _keyed(settings):
        return None
    return (
        "API key: got one but no OpenAI endpoint, and the other ports ask for none; set "
        "--openai-port, or remove the key"
    )


def visible_key(settings: ServerSettings, arguments: Sequence[str]) -> str | None:
    """Returns a warning for a control key in this program's arguments, or None."""
    key = settings.control_key
    if key is None or not any(key in word for word in arguments):
        return None
    return (
        "--control-key: got a key on the command line, which every user of this machine can read "
        f"(ps); set {variable('control_key')} instead"
    )


def _keyed(settings: ServerSettings) -> bool:
    return settings.api_key_file is not None or API_KEY in os.environ


def is_loopback(host: str) -> bool:
    """Whether an address or host name is reachable from this machine only."""
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):
        return False

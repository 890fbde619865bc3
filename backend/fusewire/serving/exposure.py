"""The ports of a server that the network can reach without authentication."""

from __future__ import annotations

import ipaddress
import os
import socket

from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.environment import API_KEY


def warning(settings: ServerSettings, at: Endpoint, openai_address: str | None) -> str | None:
    """Names the ports that are open to others and the remedy; None on loopback."""
    if _loopback(at.host):
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
    """Names the remedy for an API key where nothing asks for it, else None."""
    if openai_address is not None or not _keyed(settings):
        return None
    return (
        "API key: got one but no OpenAI endpoint, and the other ports ask for none; set "
        "--openai-port, or remove the key"
    )


def _keyed(settings: ServerSettings) -> bool:
    return settings.api_key_file is not None or API_KEY in os.environ


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):
        return False

"""Restricts the hosts that a request may name, against web pages that reach loopback through a
browser.

A page can make its own name resolve to 127.0.0.1 (DNS rebinding). Then the header Host has this
name. A page of another origin is named in the header Origin.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from fusewire.errors import ConfigurationError
from fusewire.serving.exposure import is_loopback
from fusewire.serving.openai.errors import ApiError

ANY = "*"


class Hosts:
    """The allowed hosts; any where the endpoint is open to the network."""

    def __init__(self, bound: str, allowed: str | None) -> None:
        """`bound`: the address that the endpoint listens on. `allowed`: names and addresses
        separated by commas, `*` for any. Raises ConfigurationError for an invalid one."""
        self._any = allowed is None and not is_loopback(bound)
        own = (bound, "localhost", socket.gethostname())
        self._names = {name.lower() for name in own}
        for entry in allowed.split(",") if allowed is not None else ():
            name = entry.strip()
            self._any |= name == ANY
            if name != ANY and (not name or _name(f"//{_bracketed(name)}") != name.lower()):
                raise ConfigurationError(
                    f"allowed-hosts: got {name[:80]!r}, wanted host names or addresses without "
                    f"ports, with commas between them, or {ANY} for any; for example "
                    "models.example.com"
                )
            self._names.add(name.lower())

    def refusal(self, headers: Headers) -> ApiError | None:
        """Returns the error for a request that names another host, or None."""
        if self._any:
            return None
        for field, prefix in (("Host", "//"), ("Origin", "")):
            value = headers.get(field)
            if value is not None and not self._allows(_name(prefix + value)):
                there = ", ".join(sorted(self._names))
                message = (
                    f"{field}: got {value[:80]!r}, wanted one of {there}; call the endpoint by one "
                    "of these, or start the server with --allowed-hosts"
                )
                return ApiError(403, message, code="host_not_allowed")
        return None

    def _allows(self, name: str | None) -> bool:
        return name is not None and (name in self._names or _is_address_of_loopback(name))


def _name(url: str) -> str | None:
    """Returns the host of a URL, without its port."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return None
    return None if host is None else host.rstrip(".")


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _is_address_of_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

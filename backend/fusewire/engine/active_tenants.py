"""Among how many tenants the time is shared, and how much of it each has reserved."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

# Tenants that are remembered while they have nothing here: clients choose their names.
_MOST_IDLE = 1024


class Shown(Protocol):
    """Where others read what tenants have reserved."""

    def set_tenant(self, tenant: str, seconds: dict[int, float]) -> None: ...
    def drop_tenant(self, tenant: str) -> None: ...


class ActiveTenants:
    """Tenants with requests here, or that asked lately, refused or not. One thread at a time; O(1)
    a call, but for the few priorities of one tenant."""

    def __init__(self, window_s: float, shown: Shown | None = None) -> None:
        """`window_s`: how long a tenant that asked counts as active."""
        self._shown = shown
        self._window_s = window_s
        self._asked: OrderedDict[str, float] = OrderedDict()  # tenant -> when, the latest last
        self._requests: dict[str, int] = {}  # tenant -> requests that are here
        self._seconds: dict[str, dict[int, float]] = {}  # of them: tenant -> priority -> seconds
        self._silent = 0  # tenants with requests here that have not asked lately

    def ask(self, tenant: str, now: float) -> int:
        """Notes that a tenant asks; returns how many tenants are active."""
        asked, requests = self._asked, self._requests
        if tenant not in asked and tenant in requests:
            self._silent -= 1
        asked[tenant] = now
        asked.move_to_end(tenant)
        while len(asked) > 1:
            oldest, when = next(iter(asked.items()))
            if now - when <= self._window_s and len(asked) <= _MOST_IDLE:
                break
            del asked[oldest]
            self._silent += oldest in requests
        return len(asked) + self._silent

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._asked or tenant in self._requests

    @property
    def known(self) -> tuple[int, float]:
        """(how many tenants are active as soon as one asks that has requests here, when the one
        that asked longest ago did so). The number holds until that one is out of the window. It is
        0, for unknown, where asking may forget another tenant at any time."""
        asked = self._asked
        active = len(asked) + self._silent if len(asked) < _MOST_IDLE else 0
        return active, next(iter(asked.values()), 0.0)

    def seconds(self, tenant: str, priority: int) -> float:
        """Seconds of the tenant's requests here of this priority or a higher one (lower
        numbers)."""
        own = self._seconds.get(tenant)
        return sum(s for p, s in own.items() if p <= priority) if own else 0.0

    def begin(self, tenant: str) -> None:
        """Counts a request of a tenant, which has asked, as being here."""
        self._requests[tenant] = self._requests.get(tenant, 0) + 1

    def add(self, tenant: str, priority: int, seconds: float) -> None:
        own = self._seconds.setdefault(tenant, {})
        own[priority] = own.get(priority, 0.0) + seconds
        if self._shown is not None:
            self._shown.set_tenant(tenant, own)

    def end(self, tenant: str) -> None:
        """Counts a request of a tenant as gone, of which no seconds are left."""
        self._requests[tenant] -= 1
        if not self._requests[tenant]:  # and with them what rounding has left
            del self._requests[tenant]
            self._seconds.pop(tenant, None)
            if self._shown is not None:
                self._shown.drop_tenant(tenant)
            self._silent -= tenant not in self._asked

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
    """Those with work here, or that asked of late, refused or not. One thread at a time; O(1) a
    call, but for the few priorities of one tenant."""

    def __init__(self, window_s: float, shown: Shown | None = None) -> None:
        """`window_s`: for so long one that asked is active."""
        self._shown = shown
        self._window_s = window_s
        self._asked: OrderedDict[str, float] = OrderedDict()  # tenant -> when, the latest last
        self._requests: dict[str, int] = {}  # that are here
        self._seconds: dict[str, dict[int, float]] = {}  # of them, by priority
        self._silent = 0  # with work here that have not asked of late

    def ask(self, tenant: str, now: float) -> int:
        """It asks; returns how many are active."""
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
        """(how many are active as soon as one asks that has work here, if that is before the first
        of those that asked of late did so too long ago, when that one did). The number is 0, which
        is none, where asking may forget another at any time."""
        asked = self._asked
        active = len(asked) + self._silent if len(asked) < _MOST_IDLE else 0
        return active, next(iter(asked.values()), 0.0)

    def seconds(self, tenant: str, priority: int) -> float:
        """Of its requests here of that priority or a higher one."""
        own = self._seconds.get(tenant)
        return sum(s for p, s in own.items() if p <= priority) if own else 0.0

    def begin(self, tenant: str) -> None:
        """A request of it, which has asked, is here."""
        self._requests[tenant] = self._requests.get(tenant, 0) + 1

    def add(self, tenant: str, priority: int, seconds: float) -> None:
        own = self._seconds.setdefault(tenant, {})
        own[priority] = own.get(priority, 0.0) + seconds
        if self._shown is not None:
            self._shown.set_tenant(tenant, own)

    def end(self, tenant: str) -> None:
        """A request of it, of which no seconds are left, is gone."""
        self._requests[tenant] -= 1
        if not self._requests[tenant]:  # and with them what rounding has left
            del self._requests[tenant]
            self._seconds.pop(tenant, None)
            if self._shown is not None:
                self._shown.drop_tenant(tenant)
            self._silent -= tenant not in self._asked

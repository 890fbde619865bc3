"""Among how many tenants the time is shared, and how much of it each has reserved."""

from __future__ import annotations

from collections import OrderedDict

# Tenants that are remembered while they have nothing here: clients choose their names.
_MOST_IDLE = 1024


class ActiveTenants:
    """Those with work here, or that asked of late, refused or not. One thread at a time; O(1) a
    call, but for the few priorities of one tenant."""

    def __init__(self, window_s: float) -> None:
        """`window_s`: for so long one that asked is active."""
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

    def end(self, tenant: str) -> None:
        """A request of it, of which no seconds are left, is gone."""
        self._requests[tenant] -= 1
        if not self._requests[tenant]:  # and with them what rounding has left
            del self._requests[tenant]
            self._seconds.pop(tenant, None)
            self._silent -= tenant not in self._asked

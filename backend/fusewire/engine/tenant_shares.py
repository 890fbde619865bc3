"""Whether a tenant had its share of the machine already, of sequences that wait."""

from __future__ import annotations

from collections import defaultdict
from math import exp

from fusewire.engine.active_tenants import ActiveTenants
from fusewire.engine.backlog import ABOVE_SHARE
from fusewire.errors import Overloaded

# Seconds after which what a tenant was given counts 1/e: sequences are so large a part of a second
# that chance gives every tenant too much of some.
_REMEMBERED_S = 60.0


class TenantShares:
    """The seconds of the machine that active tenants were given of late, and those that wait. One
    thread at a time.

    Of several, one that was given more than they were on average is above its share. It gets more
    only while all that waits fills less than half of the others' parts of the time in which a
    request has to begin, as of an encoder (backlog.py). One that newly asks counts as if it had
    been given no less than those that do: nobody saves up.
    """

    def __init__(self, window_s: float) -> None:
        """`window_s`: how long a tenant that asked counts as active."""
        self.window_s = window_s
        self.waiting_s = 0.0  # seconds of all that wait
        self._active = ActiveTenants(window_s)
        self._waiting_s: defaultdict[str, float] = defaultdict(float)
        # In seconds at `_since`: later ones count more, which is as if earlier ones were forgotten.
        self._given: dict[str, float] = {}
        self._since = 0.0

    @property
    def known(self) -> tuple[int, float]:
        """See ActiveTenants."""
        return self._active.known

    @property
    def fair(self) -> float:
        """What the active tenants were given on average, as `above` has it."""
        return sum(self._given.values()) / max(1, len(self._given))

    def above(self) -> list[tuple[str, float]]:
        """(tenant, what it was given) for each tenant of which something waits that has its share
        or more."""
        fair = self.fair
        return [
            (tenant, given)
            for tenant, given in self._given.items()
            if given >= fair and self._waiting_s.get(tenant, 0.0) > 0
        ]

    def ask(self, tenant: str, now: float) -> int:
        """Notes that a tenant asks; returns how many tenants are active."""
        active = self._active.ask(tenant, now)
        if tenant not in self._given or len(self._given) != active:
            self._given = {t: given for t, given in self._given.items() if t in self._active}
            self._given.setdefault(tenant, min(self._given.values(), default=0.0))
        return active

    def begin(self, tenant: str, seconds: float, now: float) -> None:
        """Counts a request of a tenant, which has asked, as being here and given `seconds`."""
        age = (now - self._since) / _REMEMBERED_S
        if age > 1.0:
            self._given = {t: given * exp(-age) for t, given in self._given.items()}
            self._since, age = now, 0.0
        self._given[tenant] += seconds * exp(age)
        self._active.begin(tenant)

    def end(self, tenant: str) -> None:
        self._active.end(tenant)

    def wait(self, tenant: str, seconds: float) -> None:
        """Adds `seconds` of a tenant to what waits."""
        self._waiting_s[tenant] += seconds
        self.waiting_s += seconds

    def forget_waiting(self) -> None:
        """Forgets what waits, which is told anew."""
        self._waiting_s.clear()
        self.waiting_s = 0.0

    def has_its_share(self, tenant: str, active: int) -> bool:
        """Whether one of `active` tenants, which has asked, was given its share, or is alone."""
        return active < 2 or self._given[tenant] >= self.fair

    def judge(self, tenant: str, seconds: float, room_s: float, active: int) -> None:
        """Raises Overloaded where one of `active` tenants, which has asked, is not to have
        `seconds` more that begin within `room_s`."""
        given, fair = self._given[tenant], self.fair
        if active < 2 or not self._waiting_s.get(tenant, 0.0) or given <= fair:
            return
        if self.waiting_s + seconds > ABOVE_SHARE * (room_s - room_s / active):
            raise Overloaded(
                f"queue: got a tenant with {given / fair:.1f} times the work of the last minute "
                f"that the {active} which ask had on average, wanted at most 1.0 while others wait",
                self.waiting_s,
            )

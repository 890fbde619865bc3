"""Whether a tenant had its share of the machine already, of sequences that wait."""

from __future__ import annotations

from collections import defaultdict
from math import exp

from fusewire.engine.active_tenants import ActiveTenants
from fusewire.engine.backlog import ABOVE_SHARE
from fusewire.errors import Overloaded

# What a tenant was given counts 1/e after so long: sequences are so large a part of a second that
# chance gives every tenant too much of some.
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
        """`window_s`: for so long one that asked is active."""
        self._active = ActiveTenants(window_s)
        self._waiting_s: defaultdict[str, float] = defaultdict(float)
        self._given_s: dict[str, float] = {}
        self._given_at = 0.0

    def ask(self, tenant: str, now: float) -> int:
        """It asks; returns how many are active."""
        active = self._active.ask(tenant, now)
        if tenant not in self._given_s:
            self._age(now)
            self._given_s[tenant] = min(self._given_s.values(), default=0.0)
        return active

    def begin(self, tenant: str, seconds: float, now: float) -> None:
        """A request of it, which has asked, is here, and is given so much."""
        self._age(now)
        self._given_s[tenant] += seconds
        self._active.begin(tenant)

    def end(self, tenant: str) -> None:
        self._active.end(tenant)

    def wait(self, tenant: str, seconds: float) -> None:
        """So much more waits."""
        self._waiting_s[tenant] += seconds

    def forget_waiting(self) -> None:
        """What waits is told anew."""
        self._waiting_s.clear()

    def judge(self, tenant: str, seconds: float, room_s: float, now: float, active: int) -> None:
        """Overloaded where one of `active` tenants, which has asked, is not to have so many seconds
        more that begin within `room_s`."""
        self._age(now)
        own_s, fair_s = self._waiting_s.get(tenant, 0.0), sum(self._given_s.values()) / active
        if active < 2 or not own_s or self._given_s[tenant] <= fair_s:
            return
        most_s = ABOVE_SHARE * (room_s - room_s / active)
        if sum(self._waiting_s.values()) + seconds > most_s:
            raise Overloaded(
                f"queue: got a tenant with {self._given_s[tenant]:.2f} s of work in the last "
                f"minute, wanted at most {fair_s:.2f} s, as the {active} that ask had on average; "
                "allow it more",
                own_s,
            )

    def _age(self, now: float) -> None:
        """Forgets those that do not ask any more, and of the others what is long ago."""
        left, self._given_at = exp((self._given_at - now) / _REMEMBERED_S), now
        given = self._given_s.items()
        self._given_s = {name: left * seconds for name, seconds in given if name in self._active}

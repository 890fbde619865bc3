"""What was taken and is not computed yet, in predicted seconds: who may still come in.

Earliest deadline first meets every deadline that any order meets (Liu and Layland, 1973), so a
request is taken only where that order stays feasible with it: what is due before it and itself fit
into its time, and what is due later still fits into its own. What is alone is taken in any case.
What is due beyond the slots (DueSlots), as what takes longer than requests wait at most, is
promised nothing and may hold up others.
"""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from fusewire.engine.due_slots import DueSlots
from fusewire.errors import Overloaded

# At most so much of a request's time is kept for the batch that is formed around it.
_MOST_MARGIN = 0.25
# Who was refused comes back when this is computed, neither all at once nor at once.
_JITTER = 0.2
_LEAST_RETRY_S = 0.05
# Tenants that are remembered while they have nothing here: clients choose their names.
_MOST_IDLE_TENANTS = 1024


@dataclass(eq=False, slots=True)
class Reservation:
    """A request's predicted seconds, while they are to be computed."""

    tenant: str
    due: float  # by time.monotonic(); inf: whenever
    seconds: float
    left: bool = False


class Backlog:
    """Reserves predicted seconds. From any thread; O(log n) a call."""

    def __init__(self, window_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        """`window_s`: about as long as requests wait at most; deadlines are told apart by 1/2048 of
        it."""
        self._clock = clock
        self._window_s = window_s
        self._slots = DueSlots(window_s / 2048, clock())
        self._live: set[Reservation] = set()
        self._tenants: dict[str, float] = {}  # -> seconds reserved
        self._counts: dict[str, int] = {}  # -> reservations
        self._asked: OrderedDict[str, float] = OrderedDict()  # tenant -> when, the latest last
        self._busy_until = 0.0
        self._begun_s = 0.0  # of the last micro-batch
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Until what was taken is computed, as predicted."""
        with self._lock:
            return self._slots.total + self._running(self._clock())

    @property
    def slack_s(self) -> float:
        """How much later than now the work may begin, in order of what is due, with none late."""
        with self._lock:
            now = self._clock()
            return self._slots.slack - now - self._running(now)

    def reserve(
        self, tenant: str, seconds: float, due: float, margin_s: float = 0.0
    ) -> Reservation:
        """Takes a request that costs so many seconds and is due by then (time.monotonic()), or
        raises Overloaded. `margin_s` is left free, but at most a quarter of its time. While nothing
        else is here, it is taken whatever it costs; what takes longer than it has is due whenever.

        Of several active tenants, one that already has its fair share of the time gets nothing of
        the last share, which is there for the others.
        """
        with self._lock:
            now = self._clock()
            if self._slots.old(now):
                self._slots.begin_at(now, ((each.due, each.seconds) for each in self._live))
            active = self._active(tenant, now)
            if due < inf:
                try:
                    self._check(tenant, seconds, due, margin_s, active)
                except Overloaded:
                    # Alone it keeps no other from being in time, and what it takes corrects the
                    # prediction.
                    if self._live or self._running(now):
                        raise
                    due = due if seconds <= _room(due - now, margin_s) else inf
            reservation = Reservation(tenant, due, seconds)
            self._live.add(reservation)
            self._tenants[tenant] = self._tenants.get(tenant, 0.0) + seconds
            self._counts[tenant] = self._counts.get(tenant, 0) + 1
            self._slots.add(due, seconds)
            return reservation

    def correct(self, reservation: Reservation, seconds: float) -> None:
        """So much is left to compute of it, as is known now."""
        with self._lock:
            if not reservation.left:
                self._correct(reservation, max(seconds, 0.0))

    def release(self, reservation: Reservation) -> None:
        """It has ended, or nothing is left of it to begin. Once is enough."""
        with self._lock:
            if reservation.left:
                return
            self._correct(reservation, 0.0)
            reservation.left = True
            self._live.discard(reservation)
            tenant = reservation.tenant
            self._counts[tenant] -= 1
            if not self._counts[tenant]:  # and with them what rounding has left
                del self._counts[tenant], self._tenants[tenant]

    def begin(self, seconds: float) -> None:
        """A micro-batch of so many predicted seconds is being computed, after the one before it,
        which at most began now: so wrong predictions do not add up."""
        with self._lock:
            now = self._clock()
            before = min(max(self._busy_until, now), now + self._begun_s)
            self._busy_until, self._begun_s = before + seconds, seconds

    def idle(self) -> None:
        """Nothing is being computed."""
        with self._lock:
            self._busy_until = 0.0

    def _running(self, now: float) -> float:
        return max(0.0, self._busy_until - now)

    def _correct(self, reservation: Reservation, seconds: float) -> None:
        change = seconds - reservation.seconds
        reservation.seconds = seconds
        self._tenants[reservation.tenant] += change
        self._slots.add(reservation.due, change)

    def _active(self, tenant: str, now: float) -> int:
        """Tenants with work here or that asked of late, refused or not."""
        self._asked[tenant] = now
        self._asked.move_to_end(tenant)
        while len(self._asked) > 1:
            oldest, asked = next(iter(self._asked.items()))
            if now - asked <= self._window_s and len(self._asked) <= _MOST_IDLE_TENANTS:
                break
            del self._asked[oldest]
        return len(self._asked.keys() | self._counts.keys()) if len(self._asked) > 1 else 1

    def _check(self, tenant: str, seconds: float, due: float, margin_s: float, active: int) -> None:
        """Overloaded, where a request of one of so many active tenants is not to be taken."""
        now = self._clock()
        running, room = self._running(now), _room(due - now, margin_s)
        share = room / active
        before, later_slack = self._slots.around(due)
        ahead, slack = running + before, later_slack - now - running
        own = self._tenants.get(tenant, 0.0)
        all_s = running + self._slots.total
        if ahead + seconds > room:
            got = f"{ahead:.3f} s of work before this request of {seconds:.3f} s"
            wanted = f"{max(room - seconds, 0.0):.3f} s to answer it in time"
        elif slack < seconds:
            got = f"{seconds:.3f} s of work that comes before other requests"
            wanted = f"{max(slack, 0.0):.3f} s to answer those in time"
        elif active > 1 and own + seconds > share and all_s + seconds > room - share:
            got = f"{own:.3f} s of work of one tenant"
            wanted = f"{max(share - seconds, 0.0):.3f} s where {active} tenants ask"
        else:
            return
        retry = max(all_s, _LEAST_RETRY_S) * random.uniform(1 - _JITTER, 1 + _JITTER)
        raise Overloaded(f"queue: got {got}, wanted at most {wanted}; allow it more", retry)


def _room(window_s: float, margin_s: float) -> float:
    """What is left of a request's time for the work."""
    return window_s - min(margin_s, _MOST_MARGIN * max(window_s, 0.0))

"""What was taken and is not computed yet, in predicted seconds: who may still come in.

Earliest deadline first meets every deadline that any order meets (Liu and Layland, 1973), so a
request is taken only where that order stays feasible with it: what is due before it and itself fit
into its time, and what is due later still fits into its own. Only what is of its own or a higher
priority counts; what is of a lower one gives way (due_levels). What is alone is taken in any case.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Any

from fusewire.engine.active_tenants import ActiveTenants, Shown
from fusewire.engine.due_levels import DueLevels, Level, Reservation
from fusewire.engine.due_slots import Regions
from fusewire.errors import Overloaded

__all__ = ["Backlog", "Reservation"]

# Largest share of a request's time that is kept for the batch that is formed around it.
MOST_MARGIN = 0.25
# How much of the time beyond one tenant's share all work may fill while a tenant above its share
# still gets more.
ABOVE_SHARE = 0.5
# Spread and least of the seconds after which those refused may come back: when the work here is
# computed, but not all of them together, nor too soon.
JITTER = 0.2
LEAST_RETRY_S = 0.05
# Seconds that rounding leaves of what is computed.
NONE_S = 1e-9


class Backlog:
    """Reserves predicted seconds. From any thread; O(log n) a call, and O(1) for what has no
    time."""

    def __init__(
        self,
        window_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        regions: Regions | None = None,
        shown: Shown | None = None,
    ) -> None:
        """`window_s`: about as long as requests wait at most; deadlines within twice this time are
        told apart by 1/2048 of it, later ones by 1/128 of what is left. `regions`, `shown`: where
        others may read what is here; None: nowhere."""
        self._clock = clock
        self._window_s, self._width_s = window_s, window_s / 2048
        self._levels = DueLevels(self._width_s, clock(), regions)
        self._tenants = ActiveTenants(window_s, shown)
        self._requests = 0  # how many are here
        self._whenever = 0  # of them, those without a deadline
        self._whenever_s = 0.0
        self._busy_until = 0.0
        self._begun_s = 0.0  # predicted, of the last micro-batch
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Predicted seconds until all that was taken is computed."""
        with self._lock:
            return self._levels.all.total + self._whenever_s + self._running(self._clock())

    @property
    def slack_s(self) -> float:
        """Seconds by which the work may begin later than now, in order of what is due, with none
        late."""
        with self._lock:
            now = self._clock()
            return self._levels.all.slack - now - self._running(now)

    @property
    def regions(self) -> list[tuple[int, int]]:
        """See DueLevels."""
        return self._levels.regions

    @property
    def known(self) -> dict[str, Any]:
        """What is known here for `admission_block.Terms`, by its fields."""
        with self._lock:
            active, oldest_asked = self._tenants.known
            return {
                "requests": self._requests,
                "busy_until": self._busy_until,
                "begin": self._levels.begin,
                "width_s": self._width_s,
                "active": active,
                "oldest_asked": oldest_asked,
                "window_s": self._window_s,
            }

    def ask(self, tenant: str) -> None:
        """Notes that a tenant asks with a request that was refused before it came here."""
        with self._lock:
            self._tenants.ask(tenant, self._clock())

    def reserve(
        self,
        tenant: str,
        seconds: float,
        due: float,
        margin_s: float = 0.0,
        priority: int = 0,
        of: object = None,
    ) -> Reservation:
        """Takes a request that costs `seconds` and is `due` by time.monotonic() (inf: at any time),
        or raises Overloaded. `margin_s` of its time is left free, at most a quarter of it. `of`:
        what the reservation is for. While nothing else is here, it is taken whatever it costs; what
        takes longer than it has is then due at any time.

        It is judged against work of its own and higher priorities (lower numbers). Requests of
        lower ones that then have no time left are `displaces` of the reservation, and released.

        Of several active tenants, one that already has its fair share of the time gets more only
        while all work fills less than half of the other shares: a device needs no more to have
        work, and the rest is there when the others come. It displaces no others' requests.
        """
        with self._lock:
            if due == inf:
                return self._take(Reservation(tenant, due, seconds, priority, of))
            now = self._clock()
            self._levels.refresh(now)
            level = self._levels.at(priority)
            active = self._tenants.ask(tenant, now)
            displaces: list[Reservation] = []
            try:
                displaces = self._judge(level, tenant, seconds, due, margin_s, now, active)
            except Overloaded:
                # Alone it keeps no other from being in time, and what it takes corrects the
                # prediction.
                if self._requests or self._running(now):
                    raise
                due = due if seconds <= _room(due - now, margin_s) else inf
            for each in displaces:
                self._gone(each)
            reserved = Reservation(tenant, due, seconds, level.priority, of, displaces)
            return self._take(reserved)

    def correct(self, reservation: Reservation, seconds: float) -> None:
        """Sets the predicted `seconds` that are left to compute of a request."""
        with self._lock:
            if not reservation.left:
                self._correct(reservation, max(seconds, 0.0))

    def release(self, reservation: Reservation) -> None:
        """Releases a request that has ended, or of which nothing is left to begin. Once is
        enough."""
        with self._lock:
            if reservation.left:
                return
            if reservation.due < inf:
                self._levels.remove(reservation)
            self._gone(reservation)

    def begin(self, seconds: float) -> None:
        """A micro-batch of `seconds`, as predicted, is given to the device, after the one before
        it, which counts as begun by now: so wrong predictions do not add up."""
        with self._lock:
            now = self._clock()
            before = min(max(self._busy_until, now), now + self._begun_s)
            self._busy_until, self._begun_s = before + seconds, seconds

    def idle(self) -> None:
        """The device computes nothing."""
        with self._lock:
            self._busy_until = 0.0

    def _running(self, now: float) -> float:
        return max(0.0, self._busy_until - now)

    def _take(self, reservation: Reservation) -> Reservation:
        self._requests += 1
        if reservation.due == inf:
            self._whenever += 1
            self._whenever_s += reservation.seconds
        else:
            self._levels.add(reservation)
            self._tenants.begin(reservation.tenant)
            self._tenants.add(reservation.tenant, reservation.priority, reservation.seconds)
        return reservation

    def _gone(self, reservation: Reservation) -> None:
        """Forgets a reservation that is not among the levels any more."""
        self._requests -= 1
        if reservation.due == inf:
            self._whenever -= 1
            self._whenever_s -= reservation.seconds
            if not self._whenever:  # and with them what rounding has left
                self._whenever_s = 0.0
        else:
            tenant = reservation.tenant
            self._tenants.add(tenant, reservation.priority, -reservation.seconds)
            self._tenants.end(tenant)
        reservation.seconds, reservation.left = 0.0, True

    def _correct(self, reservation: Reservation, seconds: float) -> None:
        change = seconds - reservation.seconds
        reservation.seconds = seconds
        if reservation.due == inf:
            self._whenever_s += change
        else:
            self._tenants.add(reservation.tenant, reservation.priority, change)
            self._levels.change(reservation, change)

    def _judge(
        self,
        level: Level,
        tenant: str,
        seconds: float,
        due: float,
        margin_s: float,
        now: float,
        active: int,
    ) -> list[Reservation]:
        """The reservations that give way to a request of one of `active` tenants; Overloaded where
        it is not to be taken."""
        running, room = self._running(now), _room(due - now, margin_s)
        share = room / active
        before, later_slack = level.slots.around(due)
        ahead, slack = running + before, later_slack - now - running
        all_s = running + level.slots.total
        own = self._tenants.seconds(tenant, level.priority) if active > 1 else 0.0
        above_share = own > NONE_S and own + seconds > share
        if ahead + seconds > room:
            got = f"{ahead:.3f} s of work before this request of {seconds:.3f} s"
            wanted = f"{max(room - seconds, 0.0):.3f} s to answer it in time"
        elif slack < seconds:
            got = f"{seconds:.3f} s of work that comes before other requests"
            wanted = f"{max(slack, 0.0):.3f} s to answer those in time"
        else:
            displaces = None
            if not above_share or all_s + seconds <= ABOVE_SHARE * (room - share):
                owner = tenant if above_share else None
                displaces = self._levels.give_way(level, now + running, seconds, due, owner)
            if displaces is not None:
                return displaces
            got = f"{own:.3f} s of work of one tenant"
            wanted = f"{max(share - seconds, 0.0):.3f} s where {active} tenants ask"
        retry = max(all_s, LEAST_RETRY_S) * random.uniform(1 - JITTER, 1 + JITTER)
        raise Overloaded(f"queue: got {got}, wanted at most {wanted}; allow it more", retry)


def _room(window_s: float, margin_s: float) -> float:
    """Seconds of a request's time, `window_s`, that are left for the work."""
    return window_s - min(margin_s, MOST_MARGIN * max(window_s, 0.0))

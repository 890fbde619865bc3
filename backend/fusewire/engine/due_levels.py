"""Work by priority and by when it is due: what a request is judged against, and what gives way."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import attrgetter

from fusewire.engine.due_slots import DueSlots, OwnMemory, Regions

# Priorities that are told apart at a time, as clients choose them. One more counts as the next
# lower of those that are there.
_MOST_LEVELS = 8
_priority = attrgetter("priority")


@dataclass(eq=False, slots=True)
class Reservation:
    """A request's predicted seconds, while they are to be computed."""

    tenant: str
    due: float  # by time.monotonic(); inf: at any time
    seconds: float
    priority: int = 0  # lower numbers first
    of: object = None  # what it is for
    displaces: list[Reservation] = field(default_factory=list)  # which were to give way to it
    left: bool = False


@dataclass(eq=False)
class Level:
    """A priority: `slots` hold its work and that of all higher ones, `own` its requests, as they
    came."""

    priority: int
    slots: DueSlots
    own: dict[Reservation, None] = field(default_factory=dict)


class DueLevels:
    """All reservations with a deadline, by priority. One thread at a time; O(log n) a call for each
    priority that is here."""

    def __init__(self, width_s: float, now: float, regions: Regions | None = None) -> None:
        """`regions`: memory for the slots of each priority, and for one more; None: of this process
        alone."""
        self._regions = OwnMemory() if regions is None else regions
        self._none = DueSlots(width_s, now, self._regions.take())
        self._levels: list[Level] = []  # the highest first

    @property
    def all(self) -> DueSlots:
        """The work of every priority."""
        return self._levels[-1].slots if self._levels else self._none

    @property
    def begin(self) -> float:
        """When the first slot begins."""
        return self._none.begin

    @property
    def regions(self) -> list[tuple[int, int]]:
        """(priority, where its slots lie) of each level, the highest first."""
        return [(level.priority, level.slots.region.place) for level in self._levels]

    def at(self, priority: int) -> Level:
        """The level of requests of this priority, which is made where there is none and room for
        it."""
        levels = self._levels
        place = bisect_left(levels, priority, key=_priority)
        if place < len(levels) and levels[place].priority == priority:
            return levels[place]
        if len(levels) >= _MOST_LEVELS:
            empty = next((level for level in levels if not level.own), None)
            if empty is None:
                return levels[min(place, len(levels) - 1)]
            levels.remove(empty)
            self._regions.give_back(empty.slots.region)
            place = bisect_left(levels, priority, key=_priority)
        above = levels[place - 1].slots if place else self._none
        level = Level(priority, above.copy(self._regions.take()))
        levels.insert(place, level)
        return level

    def refresh(self, now: float) -> None:
        """Begins the slots anew at `now`, where they are old."""
        if not self._none.old(now):
            return
        self._none.begin_at(now, ())
        for level in self._levels:
            if not level.own:
                self._regions.give_back(level.slots.region)
        self._levels = [level for level in self._levels if level.own]
        work: list[tuple[float, float]] = []
        for level in self._levels:
            work += [(each.due, each.seconds) for each in level.own]
            level.slots.begin_at(now, work)

    def add(self, reservation: Reservation) -> None:
        """Adds a reservation of a priority that `at` gave."""
        self.at(reservation.priority).own[reservation] = None
        self.change(reservation, reservation.seconds)

    def change(self, reservation: Reservation, by_s: float) -> None:
        """Adds `by_s` to the seconds of a reservation in the slots."""
        for level in reversed(self._levels):
            if level.priority < reservation.priority:
                break
            level.slots.add(reservation.due, by_s)

    def remove(self, reservation: Reservation) -> None:
        self.change(reservation, -reservation.seconds)
        del self.at(reservation.priority).own[reservation]

    def give_way(
        self, level: Level, begin: float, seconds: float, due: float, tenant: str | None
    ) -> list[Reservation] | None:
        """Takes out what has to give way to a request of this level, for which there is room among
        those of its own and higher levels, where the work begins at `begin` (time.monotonic()):
        requests of lower priority that would be late, or make others late; of a level first those
        that came last. `tenant`: only this one's. None, and nothing is taken out, where these are
        not enough."""
        found: list[Reservation] = []
        for lower in self._levels[self._levels.index(level) + 1 :]:
            slots = lower.slots
            while (last := _tight(slots, begin, seconds, due)) is not None:
                latest = (
                    each
                    for each in reversed(lower.own)
                    if each.seconds > 0
                    and slots.slot(each.due) <= last
                    and tenant in (None, each.tenant)
                )
                each = next(latest, None)
                if each is None and tenant is None:  # no more than rounding
                    break
                if each is None:
                    for other in reversed(found):
                        self.add(other)
                    return None
                self.remove(each)
                found.append(each)
        return found


def _tight(slots: DueSlots, begin: float, seconds: float, due: float) -> int | None:
    """The last slot of those in which there is too much for one more request; None: in none."""
    before, latest = slots.around(due)
    if begin + before + seconds > due:
        return slots.slot(due)
    return slots.tightest(due) if latest - begin < seconds else None

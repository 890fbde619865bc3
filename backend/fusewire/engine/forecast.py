"""When there is room for a sequence that would wait: behind what runs, and what waits before it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import NamedTuple

# Of its time, how long a request waits at most where there was no room for longer than all of it.
STANDING_SHARE = 0.05


class Need(NamedTuple):
    """Of a request, by what is known of it now."""

    slots: int
    pages: float
    prompt_s: float  # for which all wait, once it begins
    run_s: float  # from then on, until it ends
    cost_s: float = 0.0  # of the whole machine: how much later others begin for it


class End(NamedTuple):
    """Of a sequence that runs, or will: what it leaves, and when (time.monotonic())."""

    at: float
    slots: int
    pages: float


class Forecast:
    """The slots and pages behind all that is here, each of which begins as soon as there is room,
    in order."""

    def __init__(self, now: float, slots: int, pages: float) -> None:
        """Of so many in all."""
        self.begins = now  # the last that waits
        self.slots, self.pages = slots, pages  # free then
        self.ends: list[End] = []  # of those that run then, the earliest first

    def copy(self) -> Forecast:
        twin = Forecast(self.begins, self.slots, self.pages)
        twin.ends = self.ends[:]
        return twin

    def begin(self, slots: int, pages: float) -> float:
        """When one that needs so many would begin. Looks at those that have to end before it: at
        the first one, most often."""
        return self._room(slots, pages)[0]

    def run(self, end: End) -> None:
        """One that runs now."""
        self.slots, self.pages = self.slots - end.slots, self.pages - end.pages
        insort(self.ends, end)

    def wait(self, need: Need) -> float:
        """One that waits, behind all others; returns when it begins."""
        at, free, room, ended = self._room(need.slots, need.pages)
        del self.ends[:ended]
        self.begins, self.slots, self.pages = at + need.prompt_s, free, room
        self.run(End(self.begins + need.run_s, need.slots, need.pages))
        return at

    def _room(self, slots: int, pages: float) -> tuple[float, int, float, int]:
        """(when there is, slots and pages that are free then, how many have ended by then)."""
        at, free, room, ended = self.begins, self.slots, self.pages, 0
        for end in self.ends:
            if slots <= free and pages <= room:
                break
            at, free, room = max(at, end.at), free + end.slots, room + end.pages
            ended += 1
        return at, free, room, ended


_ANY = Need(1, 1.0, 0.0, 0.0)  # the least that has no room where a queue is
_LATER_THAN_ALL = 1e300  # deadlines; what has none is behind
_priority = attrgetter("priority")
_deadline = attrgetter("deadline")


@dataclass
class Waiting:
    """One that waits."""

    deadline: float
    begin_by: float  # in order to end by then
    begins: float


@dataclass
class Level:
    """What waits of one priority."""

    priority: float
    behind: Forecast  # all of it, and of higher ones
    waiting: list[Waiting] = field(default_factory=list)  # the earliest deadline first
    full_since: float = inf  # there has been no room since

    @property
    def last_deadline(self) -> float:
        return self.waiting[-1].deadline if self.waiting else -inf

    def place(self, deadline: float) -> int:
        return bisect_right(self.waiting, deadline, key=_deadline)

    def later(self, deadline: float) -> list[Waiting]:
        """Those that one of this deadline goes before."""
        return self.waiting[self.place(deadline) :]


class Forecasts:
    """Of each priority: one that waits is behind those of higher ones (lower numbers), and of its
    own behind those whose deadline is not later. Behind the last of its own it begins as predicted
    exactly, before others about when the first of them was to."""

    def __init__(self, running: Forecast) -> None:
        self.levels = [Level(-inf, running)]  # the highest priority first

    def begin(self, priority: float, deadline: float, need: Need) -> float:
        level = self._of(priority)
        later = level.later(deadline) if level.priority == priority else []
        return later[0].begins if later else level.behind.begin(need.slots, need.pages)

    def slack_s(self, priority: float, deadline: float) -> float:
        """How much later those of its priority may begin that it would go before."""
        level = self._of(priority)
        later = level.later(deadline) if level.priority == priority else []
        return min([each.begin_by - each.begins for each in later], default=inf)

    def go_on(self, before: Forecasts, now: float, *, refusing: bool) -> None:
        """Notes since when there has been no room, by what was found before; room that is there as
        others are refused is none."""
        for level in self.levels:
            since = before._of(level.priority).full_since
            if self.begin(level.priority, _LATER_THAN_ALL, _ANY) > now:
                level.full_since = min(since, now)
            elif refusing:
                level.full_since = since

    def longest_wait_s(self, priority: float, left_s: float, now: float) -> float:
        """That a request may have with so much time left. A queue that empties again takes bursts
        up. One that stands longer than requests have is there because more comes than can be
        answered: its length answers no more of it, everybody waits, and only short answers fit in
        behind it (Nichols and Jacobson, Controlling Queue Delay, 2012)."""
        stands = now - self._of(priority).full_since > left_s
        return STANDING_SHARE * left_s if stands else inf

    def wait(self, priority: float, deadline: float, begin_by: float, need: Need) -> None:
        """One more waits. To those of lower priorities it is as if it were the last of them."""
        place = bisect_left(self.levels, priority, key=_priority)
        if place == len(self.levels) or self.levels[place].priority != priority:
            above = self.levels[place - 1]
            self.levels.insert(
                place, Level(priority, above.behind.copy(), full_since=above.full_since)
            )
        own, *lower = self.levels[place:]
        begins, later = own.behind.wait(need), own.later(deadline)
        if later:
            begins = later[0].begins
        own.waiting.insert(own.place(deadline), Waiting(deadline, begin_by, begins))
        for level in lower:
            level.behind.wait(need)
            later = later + level.waiting
        for each in later:
            each.begins += need.cost_s

    def _of(self, priority: float) -> Level:
        return self.levels[bisect_right(self.levels, priority, key=_priority) - 1]

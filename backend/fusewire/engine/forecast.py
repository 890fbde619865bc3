"""When there is room for a sequence that would wait: behind what runs, and what waits before it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import NamedTuple

# Share of its time that a request waits at most where there was no room for longer than all of it.
STANDING_SHARE = 0.05


class Need(NamedTuple):
    """What a request needs, by what is known of it now."""

    slots: int
    pages: float
    prompt_s: float  # seconds for which all wait, once it begins
    run_s: float  # seconds from then on, until it ends
    cost_s: float = 0.0  # seconds of the whole machine: how much later others begin for it


class End(NamedTuple):
    """When a request that runs, or will, ends (time.monotonic()), and the slots and pages that it
    then leaves."""

    at: float
    slots: int
    pages: float


class Forecast:
    """Free slots and pages once all that is here has begun, each as soon as there is room, in
    order."""

    def __init__(self, now: float, slots: int, pages: float) -> None:
        """`slots`, `pages`: how many there are in all."""
        self.begins = now  # when the last that waits begins
        self.slots, self.pages = slots, pages  # free then
        self.ends: list[End] = []  # ends of those that run then, the earliest first

    def copy(self) -> Forecast:
        twin = Forecast(self.begins, self.slots, self.pages)
        twin.ends = self.ends[:]
        return twin

    def begin(self, slots: int, pages: float) -> float:
        """When a request that needs `slots` and `pages` would begin. Looks at those that have to
        end before it: at the first one, most often."""
        return self._room(slots, pages)[0]

    def run(self, end: End) -> None:
        """Adds a request that runs now."""
        self.slots, self.pages = self.slots - end.slots, self.pages - end.pages
        insort(self.ends, end)

    def wait(self, need: Need) -> float:
        """Adds a request that waits, behind all others; returns when it begins."""
        at, free, room, ended = self._room(need.slots, need.pages)
        del self.ends[:ended]
        self.begins, self.slots, self.pages = at + need.prompt_s, free, room
        self.run(End(self.begins + need.run_s, need.slots, need.pages))
        return at

    def _room(self, slots: int, pages: float) -> tuple[float, int, float, int]:
        """(when there is room, slots free then, pages free then, how many have ended by then)."""
        at, free, room, ended = self.begins, self.slots, self.pages, 0
        for end in self.ends:
            if slots <= free and pages <= room:
                break
            at, free, room = max(at, end.at), free + end.slots, room + end.pages
            ended += 1
        return at, free, room, ended


_ANY = Need(1, 1.0, 0.0, 0.0)  # the least request: where there is a queue, it has no room
_LATER_THAN_ALL = 1e300  # deadlines; a request without one is behind
_priority = attrgetter("priority")
_deadline = attrgetter("deadline")


@dataclass
class Waiting:
    """A request that waits."""

    deadline: float
    begin_by: float  # in order to end by its deadline
    begins: float


@dataclass
class Level:
    """The requests of one priority that wait."""

    priority: float
    behind: Forecast  # after all of it, and of higher priorities
    waiting: list[Waiting] = field(default_factory=list)  # the earliest deadline first
    full_since: float = inf  # since when there has been no room

    @property
    def last_deadline(self) -> float:
        return self.waiting[-1].deadline if self.waiting else -inf

    def place(self, deadline: float) -> int:
        return bisect_right(self.waiting, deadline, key=_deadline)

    def later(self, deadline: float) -> list[Waiting]:
        """The requests that one with this deadline goes before."""
        return self.waiting[self.place(deadline) :]


class Forecasts:
    """A forecast for each priority. A request that waits is behind those of higher priorities
    (lower numbers), and behind those of its own whose deadline is not later. The last of its
    priority begins exactly as predicted; one that goes before others begins about when the first of
    them was to."""

    def __init__(self, running: Forecast) -> None:
        self.levels = [Level(-inf, running)]  # the highest priority first

    def begin(self, priority: float, deadline: float, need: Need) -> float:
        level = self._of(priority)
        later = level.later(deadline) if level.priority == priority else []
        return later[0].begins if later else level.behind.begin(need.slots, need.pages)

    def slack_s(self, priority: float, deadline: float) -> float:
        """Seconds by which the requests of its priority that one would go before may begin
        later."""
        level = self._of(priority)
        later = level.later(deadline) if level.priority == priority else []
        return min([each.begin_by - each.begins for each in later], default=inf)

    def go_on(self, before: Forecasts, now: float, *, refusing: bool) -> None:
        """Notes since when there has been no room, by the forecasts `before`. Room that is there as
        others are refused (`refusing`) does not count."""
        for level in self.levels:
            since = before._of(level.priority).full_since
            if self.begin(level.priority, _LATER_THAN_ALL, _ANY) > now:
                level.full_since = min(since, now)
            elif refusing:
                level.full_since = since

    def longest_wait_s(self, priority: float, left_s: float, now: float) -> float:
        """The longest wait of a request with `left_s` until its deadline. A queue that empties
        again takes bursts up. One that stands longer than requests have is there because more comes
        than can be answered: its length answers no more of it, everybody waits, and only short
        answers fit in behind it (Nichols and Jacobson, Controlling Queue Delay, 2012)."""
        stands = now - self._of(priority).full_since > left_s
        return STANDING_SHARE * left_s if stands else inf

    def wait(self, priority: float, deadline: float, begin_by: float, need: Need) -> None:
        """Adds a request that waits. For lower priorities it counts as the last of these."""
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

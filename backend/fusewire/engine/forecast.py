"""When there is room for a sequence that would wait: behind what runs, and what waits before it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from math import inf
from typing import NamedTuple


class Need(NamedTuple):
    """Of a request, by what is known of it now."""

    slots: int
    pages: float
    prompt_s: float  # for which all wait, once it begins
    run_s: float  # from then on, until it ends


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

    def wait(self, need: Need) -> None:
        """One that waits, behind all others."""
        at, free, room, ended = self._room(need.slots, need.pages)
        del self.ends[:ended]
        self.begins, self.slots, self.pages = at + need.prompt_s, free, room
        self.run(End(self.begins + need.run_s, need.slots, need.pages))

    def _room(self, slots: int, pages: float) -> tuple[float, int, float, int]:
        """(when there is, slots and pages that are free then, how many have ended by then)."""
        at, free, room, ended = self.begins, self.slots, self.pages, 0
        for end in self.ends:
            if slots <= free and pages <= room:
                break
            at, free, room = max(at, end.at), free + end.slots, room + end.pages
            ended += 1
        return at, free, room, ended


class Forecasts:
    """Of each priority: one that waits is behind those of its own and of higher ones (lower
    numbers)."""

    def __init__(self, running: Forecast) -> None:
        self.levels: list[tuple[float, Forecast]] = [(-inf, running)]  # the highest first

    def of(self, priority: float) -> Forecast:
        return self.levels[bisect_right(self.levels, priority, key=_priority) - 1][1]

    def wait(self, priority: float, need: Need) -> None:
        """One more waits. To those of lower priorities it is as if it were the last of them."""
        place = bisect_left(self.levels, priority, key=_priority)
        if place == len(self.levels) or self.levels[place][0] != priority:
            self.levels.insert(place, (priority, self.levels[place - 1][1].copy()))
        for _, forecast in self.levels[place:]:
            forecast.wait(need)


def _priority(level: tuple[float, Forecast]) -> float:
    return level[0]

"""Seconds of work by when they are due, in slots of time: sums and least slack in O(log n)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import floor, frexp, inf
from typing import NamedTuple, Protocol

_NEAR = 4096  # slots of one width
_OCTAVE = 128  # slots beyond them, until it is twice as late; and again
_SLOTS = 2 * _NEAR  # a power of two: the leaves of a tree

# Where each slot begins, in widths.
_BEGINS = [
    *range(_NEAR),
    *(
        (_NEAR << octave) * (1 + place / _OCTAVE)
        for octave in range(_NEAR // _OCTAVE)
        for place in range(_OCTAVE)
    ),
]


REGION_WORDS = 4 * _SLOTS
_NOTHING_DUE = memoryview(array("d", [0.0] * (2 * _SLOTS) + [inf] * (2 * _SLOTS)))


class Region(NamedTuple):
    """Memory of the slots of one object: REGION_WORDS doubles."""

    memory: memoryview[float]
    place: int = 0  # among others


class Regions(Protocol):
    """Where slots lie: others may read them there."""

    def take(self) -> Region: ...
    def give_back(self, region: Region) -> None: ...


class OwnMemory:
    """Regions of this process alone."""

    def take(self) -> Region:
        return Region(memoryview(bytearray(8 * REGION_WORDS)).cast("d"))

    def give_back(self, region: Region) -> None:
        """Does nothing: nobody holds the memory any more."""


class DueSlots:
    """A segment tree over slots of time. A node knows the work below it, and the latest time at
    which that work may begin, in order, so that none of it is late:
    latest = min(latest of the left, latest of the right - work of the left).

    What is due within a slot counts as due at its begin. Slots are `width_s` seconds wide as far as
    most requests wait, and beyond that 1/128 of how late they are, for 2^32 times as long: all that
    has a time has a slot.
    """

    def __init__(self, width_s: float, now: float, region: Region) -> None:
        """`region`: the work of all nodes comes first in it, then their latest times."""
        self.width_s = width_s
        self.begin = now
        self.region = region
        region.memory[:] = _NOTHING_DUE
        self._work, self._latest = region.memory[: 2 * _SLOTS], region.memory[2 * _SLOTS :]

    @property
    def total(self) -> float:
        return self._work[1]

    @property
    def slack(self) -> float:
        """The latest time to begin; inf where nothing is due."""
        return self._latest[1]

    def old(self, now: float) -> bool:
        """Whether half of the slots of one width are past."""
        return now - self.begin > _NEAR / 2 * self.width_s

    def begin_at(self, now: float, work: Iterable[tuple[float, float]]) -> None:
        """Begins the slots anew at `now`, with this work: (due, seconds)."""
        self.begin = now
        if self._work[1]:
            self.region.memory[:] = _NOTHING_DUE
        for due, seconds in work:
            self.add(due, seconds)

    def copy(self, region: Region) -> DueSlots:
        twin = DueSlots(self.width_s, self.begin, region)
        region.memory[:] = self.region.memory
        return twin

    def add(self, due: float, seconds: float) -> None:
        """Adds work that is `due` at a time. `seconds` may be negative: work that is done."""
        slot = self.slot(due)
        node = slot + _SLOTS
        work, latest = self._work, self._latest
        left = work[node] + seconds
        work[node] = left = left if left > 1e-9 else 0.0  # what rounding leaves is nothing
        latest[node] = self.begin + _BEGINS[slot] * self.width_s - left if left else inf
        node >>= 1
        while node:
            first, second = 2 * node, 2 * node + 1
            work[node] = work[first] + work[second]
            after = latest[second] - work[first]
            latest[node] = after if after < latest[first] else latest[first]
            node >>= 1

    def around(self, due: float) -> tuple[float, float]:
        """(the work that is due in the same slot or before, the latest time at which all that is
        due later may begin after it)."""
        node = self.slot(due) + _SLOTS
        work, latest = self._work, self._latest
        earlier, between = 0.0, work[node]  # before the slot; from it to the next node to the right
        own, behind = work[node], inf  # `behind`: the latest time at which the slot may begin
        while node > 1:
            if node & 1:
                earlier += work[node - 1]
            else:
                behind = min(behind, latest[node + 1] - between)
                between += work[node + 1]
            node >>= 1
        return earlier + own, behind - earlier

    def tightest(self, due: float) -> int:
        """The slot with the least slack of those later than that of `due`."""
        node = self.slot(due) + _SLOTS
        work, latest = self._work, self._latest
        between = work[node]
        least, found = inf, node
        while node > 1:
            if not node & 1:
                if latest[node + 1] - between < least:
                    least, found = latest[node + 1] - between, node + 1
                between += work[node + 1]
            node >>= 1
        while found < _SLOTS:
            first, second = 2 * found, 2 * found + 1
            found = first if latest[first] <= latest[second] - work[first] else second
        return found - _SLOTS

    def slot(self, due: float) -> int:
        """The slot of a time. What is due earlier has no higher one, as long as `begin` is the
        same."""
        widths = (due - self.begin) / self.width_s
        if widths < _NEAR:
            return floor(widths) if widths > 0 else 0
        mantissa, octaves = frexp(widths / _NEAR)  # in [0.5, 1), at least 1
        return min(_NEAR + (octaves - 1) * _OCTAVE + int((2 * mantissa - 1) * _OCTAVE), _SLOTS - 1)

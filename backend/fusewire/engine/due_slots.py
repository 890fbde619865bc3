"""Seconds of work by when they are due, in slots of time: sums and least slack in O(log n)."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, inf

_SLOTS = 4096  # a power of two: the leaves of a tree


class DueSlots:
    """A segment tree over slots of `width_s` seconds. A node knows the work below it, and the
    latest time at which that work may begin, in order, so that none of it is late:
    latest = min(latest of the left, latest of the right - work of the left).

    What is due within a slot counts as due at its begin: at most `width_s` too early. What is due
    beyond the last slot counts as never late, until the slots begin anew.
    """

    def __init__(self, width_s: float, now: float) -> None:
        self.width_s = width_s
        self._begin = now
        self._work = [0.0] * (2 * _SLOTS)
        self._latest = [inf] * (2 * _SLOTS)

    @property
    def total(self) -> float:
        return self._work[1]

    @property
    def slack(self) -> float:
        """The latest time to begin; inf where nothing is due."""
        return self._latest[1]

    def old(self, now: float) -> bool:
        """Half of the slots are past."""
        return now - self._begin > _SLOTS / 2 * self.width_s

    def begin_at(self, now: float, work: Iterable[tuple[float, float]]) -> None:
        """Slots from now on, with this work: (due, seconds)."""
        self._begin = now
        if self._work[1]:
            self._work = [0.0] * (2 * _SLOTS)
            self._latest = [inf] * (2 * _SLOTS)
        for due, seconds in work:
            self.add(due, seconds)

    def add(self, due: float, seconds: float) -> None:
        """`seconds` may be negative: work that is done."""
        slot = self._slot(due)
        node = slot + _SLOTS
        work, latest = self._work, self._latest
        left = work[node] + seconds
        work[node] = left if left > 1e-9 else 0.0  # what rounding leaves is nothing
        bound = work[node] and slot < _SLOTS - 1
        latest[node] = self._begin + slot * self.width_s - work[node] if bound else inf
        node >>= 1
        while node:
            first, second = 2 * node, 2 * node + 1
            work[node] = work[first] + work[second]
            after = latest[second] - work[first]
            latest[node] = after if after < latest[first] else latest[first]
            node >>= 1

    def around(self, due: float) -> tuple[float, float]:
        """(the work that is due in the same slot or before, the latest time at which all that is
        due later may begin behind it)."""
        node = self._slot(due) + _SLOTS
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

    def _slot(self, due: float) -> int:
        if due == inf:
            return _SLOTS - 1
        return min(max(floor((due - self._begin) / self.width_s), 0), _SLOTS - 1)

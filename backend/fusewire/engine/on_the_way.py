"""Requests that the server's front has let in and that have not come to the engine yet.

The server hands them over one by one. Those that arrive together are to begin in one step, rather
than each in a step of its own, which the others would wait for. Nor is the thread that computes
woken by each of them: the server's thread would wait for the interpreter until it sleeps again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# So long nobody waits for the next one, nor for all of them.
_GAP_S, _MOST_S = 0.002, 0.02


def _none() -> int:
    return 0


class OnTheWay:
    """Of one engine. One thread calls `came` and `taken`, one the others."""

    def __init__(self) -> None:
        self.let_in: Callable[[], int] = _none  # how many so far, as far as is known
        self._reading = self._taken = 0  # that came
        # Of those that were let in more than were taken: whoever was cancelled in the server, say.
        # Less than 0 where others came.
        self._lost = 0
        self._enough = 0
        self._all_here = threading.Event()

    def came(self) -> None:
        """One is here, and is handed over, if it is, before it is `taken`."""
        self._reading += 1

    def taken(self) -> None:
        """All that came."""
        if self._reading:
            self._taken += self._reading
            self._reading = 0
            if not (self._all_here.is_set() or self._some_wanted):
                self._all_here.set()

    @property
    def some(self) -> bool:
        left = self.let_in() - self._taken
        self._lost = min(self._lost, left)
        return left > self._lost

    @property
    def _some_wanted(self) -> bool:
        return self._taken < self._enough and self.some

    def wait(self, most: int) -> None:
        """Until all are taken, or so many, or those left should have come: one that does all the
        same is counted then."""
        until = time.monotonic() + _MOST_S
        self._enough = self._taken + most
        self._all_here.clear()
        while self._some_wanted and (left_s := until - time.monotonic()) > 0:
            taken = self._taken
            if not self._all_here.wait(min(_GAP_S, left_s)) and self._taken == taken:
                self._lost = self.let_in() - taken
        self._all_here.set()

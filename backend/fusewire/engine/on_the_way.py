"""Requests that the server's front has let in and that have not come to the engine yet.

The server hands them over one by one. Those that arrive together are to begin in one step, rather
than each in a step of its own, which the others would wait for.
"""

from __future__ import annotations

from collections.abc import Callable


def _none() -> int:
    return 0


class OnTheWay:
    """Of one engine. One thread calls `came`, one the others."""

    def __init__(self) -> None:
        self.let_in: Callable[[], int] = _none  # how many so far, as far as is known
        self._came = 0
        # Of those that were let in more than came: whoever was cancelled in the server, say. Less
        # than 0 where others came.
        self._lost = 0

    def came(self) -> None:
        """One is being read, and is handed over, if it is, after this."""
        self._came += 1

    @property
    def some(self) -> bool:
        left = self.let_in() - self._came
        self._lost = min(self._lost, left)
        return left > self._lost

    def give_up(self) -> None:
        """Those that should have come by now: one that does all the same is counted then."""
        self._lost = self.let_in() - self._came

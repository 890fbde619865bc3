"""How many of a list's requests are under way at a time: as many as the server takes.

Additive increase, multiplicative decrease (Chiu and Jain, 1989), as TCP does it: a refusal halves
the number, once for all that were under way together; answers raise it by one for each round.
"""

from __future__ import annotations

from typing import NamedTuple


class Turn(NamedTuple):
    """One request: its number, and how many had been answered when it began."""

    number: int
    answered: int


class Pace:
    """The pace of the requests of one call. One thread at a time, or under a lock."""

    def __init__(self, most: int) -> None:
        self.under_way = 0
        self._answered = 0
        self._most = most
        self._limit = float(most)
        self._refused_at = 0  # requests begun when it was last lowered
        self._begun = 0

    @property
    def room(self) -> bool:
        """Whether one more may begin."""
        return self.under_way < max(1, int(self._limit))

    def begin(self) -> Turn:
        """One begins."""
        self.under_way += 1
        self._begun += 1
        return Turn(self._begun, self._answered)

    def end(self, *, answered: bool) -> None:
        """One has ended, but was not refused."""
        self.under_way -= 1
        if answered:
            self._answered += 1
            self._limit = min(float(self._most), self._limit + 1.0 / int(self._limit))

    def refuse(self, turn: Turn) -> None:
        """The server had too much to do for it."""
        self.under_way -= 1
        if turn.number > self._refused_at:
            self._limit = max(1.0, self._limit / 2)
            self._refused_at = self._begun

    def may_return(self, turn: Turn) -> bool:
        """Whether one that was refused may come again: another was answered since it came."""
        return self._answered > turn.answered

    def settled(self, turn: Turn) -> bool:
        """Whether it need wait no longer for others."""
        return self.may_return(turn) or not self.under_way

"""Limits the concurrent requests of one call to what the server can take.

Additive increase, multiplicative decrease (Chiu and Jain, 1989), as in TCP: a refusal halves the
limit, once for all requests that were in flight together; answers raise it by one per round.
"""

from __future__ import annotations

from typing import NamedTuple


class Turn(NamedTuple):
    """One request: its number, and how many had been answered when it began."""

    number: int
    answered: int


class Pace:
    """The concurrency limit of one call. Not thread-safe: use it in one thread or under a lock."""

    def __init__(self, most: int) -> None:
        self.under_way = 0
        self._answered = 0
        self._most = most
        self._limit = float(most)
        self._refused_at = 0  # the number of requests begun when the limit was last lowered
        self._begun = 0

    @property
    def room(self) -> bool:
        """Returns whether one more request may begin."""
        return self.under_way < max(1, int(self._limit))

    def begin(self) -> Turn:
        """Counts the beginning of a request."""
        self.under_way += 1
        self._begun += 1
        return Turn(self._begun, self._answered)

    def end(self, *, answered: bool) -> None:
        """Counts the end of a request that was not refused."""
        self.under_way -= 1
        if answered:
            self._answered += 1
            self._limit = min(float(self._most), self._limit + 1.0 / int(self._limit))

    def refuse(self, turn: Turn) -> None:
        """Counts a request that the server refused as overloaded, and lowers the limit."""
        self.under_way -= 1
        if turn.number > self._refused_at:
            self._limit = max(1.0, self._limit / 2)
            self._refused_at = self._begun

    def may_return(self, turn: Turn) -> bool:
        """Returns whether a refused request may be sent again: another was answered since it
        began."""
        return self._answered > turn.answered

    def settled(self, turn: Turn) -> bool:
        """Returns whether a refused request has nothing left to wait for: it may be sent again, or
        no other is in flight."""
        return self.may_return(turn) or not self.under_way

"""How much of a request's time admission may plan with, learned from what waits there were."""

from __future__ import annotations

import threading
from math import exp

# What no prediction sees of a request's time: the network, threads of the server that wait for a
# core, the answer on its way. Short times are cut by a share of themselves.
UNSEEN_S = 0.2
UNSEEN_SHARE = 0.25
# Too many are late where more than this share of those that ended lately was.
_LATE_SHARE = 0.1
_LATELY = 1 / 16  # weight of the last one
_MOST_AT_ONCE = 1.5
# For the ratio of what full micro-batches took to what was predicted: the weight of the last one,
# and how many times the factor it has to be for a raise.
_LAST_BATCH = 1 / 3
_NOTICED = 1.05
_MOST_FACTOR = 8.0
# Seconds in which the factor's distance from 1 falls to 1/e, unless it is raised again.
FORGET_S = 60.0


class DueTimes:
    """A request that is taken is to end some time before its deadline. Its wait is predicted by the
    device's clock alone; where waits are longer than that, because other work takes the same cores,
    or costs are not what they were, predictions are stretched by a factor until they are not.

    It is raised by two observations. The work that waits is computed more slowly than predicted:
    that shows with every micro-batch, before a promise is broken. Or requests end late. A raise is
    judged by requests that were taken after it, as a sender does after a lost packet (Jacobson,
    1988). It falls slowly. From any thread."""

    def __init__(self) -> None:
        self._raised = 1.0, float("-inf")  # the factor as it was raised, and when
        self._late = 0.0  # share of requests that were late, lately
        self._slowness = 1.0  # what micro-batches took to what was predicted, lately
        self._lock = threading.Lock()

    def due(self, now: float, deadline: float) -> float:
        """When a request that is taken now is to end as predicted, to meet its deadline."""
        return now + planned_s(deadline - now) / self.factor(now)

    def ended(self, taken_at: float, deadline: float, now: float) -> None:
        """Learns from a request that was taken at `taken_at` and is answered now, or too late to
        be."""
        with self._lock:
            if taken_at < self._raised[1]:
                return
            stretch = (now - taken_at) / planned_s(deadline - taken_at)
            self._late += _LATELY * ((stretch > 1.0) - self._late)
            if stretch > 1.0 and self._late > _LATE_SHARE:
                self._raise(self.factor(now) * min(stretch, _MOST_AT_ONCE), now)

    def computed(self, predicted_s: float, seconds: float, now: float) -> None:
        """Learns from a micro-batch, planned with `predicted_s`: the next one began `seconds` after
        it did, as work waited."""
        with self._lock:
            factor = self.factor(now)
            slowness = min(seconds / predicted_s, _MOST_AT_ONCE * factor)
            before = min(self._slowness, _NOTICED * factor)  # the rest is forgotten
            self._slowness = before + _LAST_BATCH * (slowness - before)
            if self._slowness > _NOTICED * factor:
                self._raise(self._slowness, now)

    def factor(self, now: float) -> float:
        """The factor by which predictions are stretched."""
        factor, raised_at = self._raised
        return 1.0 + (factor - 1.0) * exp(-max(now - raised_at, 0.0) / FORGET_S)

    def _raise(self, factor: float, now: float) -> None:
        self._raised, self._late = (min(factor, _MOST_FACTOR), now), 0.0


def planned_s(window_s: float) -> float:
    """Seconds of a request's time, `window_s`, for all that predictions see."""
    return window_s - min(UNSEEN_S, UNSEEN_SHARE * window_s)

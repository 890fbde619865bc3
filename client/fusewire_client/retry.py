"""When to retry: only what the model did not compute, not before the server wants it, and never
past the deadline; until then what the server has too much to do for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from .errors import DeadlineExceeded, Expired, Overloaded, Unavailable

# The share of the wait that the server asks for which is added at random, as it asks many
# clients for the same.
_JITTER = 0.25


@dataclass(frozen=True)
class Retry:
    """Exponential backoff with full jitter: the n-th wait is uniform in (0, first·2ⁿ], capped."""

    retries: int = 3
    first_s: float = 0.1
    longest_s: float = 2.0
    uniform: Callable[[float, float], float] = random.uniform

    def wait_s(self, attempt: int, at_least_s: float = 0.0) -> float:
        """The wait before retry number `attempt` (from 0)."""
        most_s = min(self.longest_s, self.first_s * 2.0 ** min(attempt, 64))
        return at_least_s + self.uniform(0.0, max(most_s, _JITTER * at_least_s))


class Attempts:
    """The attempts of one call, counted against its retries and its deadline."""

    def __init__(
        self, retry: Retry, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._retry = retry
        self._timeout_s = timeout_s
        self._clock = clock
        self._deadline = clock() + timeout_s
        self._failed = 0

    def remaining_s(self) -> float:
        """Seconds left for the next attempt."""
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            raise DeadlineExceeded(
                f"timeout: got no answer within {self._timeout_s:g} s, {self._failed} attempts "
                "failed; wait longer, or look at the server's load"
            )
        return remaining

    def wait_s(self, error: Unavailable) -> float:
        """Seconds to sleep before trying again; raises `error` when this was the last attempt."""
        # What is refused at once, with the time that it takes, is so as often as there is time.
        retries = self._retry.retries
        tries = inf if isinstance(error, Overloaded) and retries else retries
        # What ran out of time once would have no more of it.
        if self._failed >= tries or isinstance(error, Expired):
            raise error
        wait = self._retry.wait_s(self._failed, error.retry_after_s or 0.0)
        # A wait that ends after the deadline would only delay the truth.
        if self._clock() + wait >= self._deadline:
            raise error
        self._failed += 1
        return wait

"""When to retry: only what the model did not compute, not before the time that the server asks for,
and never past the deadline. What an overloaded server refused is retried until then."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from .errors import DeadlineExceeded, Expired, Overloaded, Unavailable

# The share of the wait that the server asks for which is added at random, as it asks many clients
# for the same wait.
_JITTER = 0.25


@dataclass(frozen=True)
class Retry:
    """Exponential backoff with full jitter: the n-th wait is uniform in (0, first·2ⁿ], up to a
    maximum."""

    retries: int = 3
    first_s: float = 0.1
    longest_s: float = 2.0
    uniform: Callable[[float, float], float] = random.uniform

    def wait_s(self, attempt: int, at_least_s: float = 0.0) -> float:
        """Returns the wait in seconds before retry number `attempt` (from 0)."""
        most_s = min(self.longest_s, self.first_s * 2.0 ** min(attempt, 64))
        return at_least_s + self.uniform(0.0, max(most_s, _JITTER * at_least_s))


class Attempts:
    """The attempts of one call, limited by its retries and its deadline."""

    def __init__(
        self, retry: Retry, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._retry = retry
        self._timeout_s = timeout_s
        self._clock = clock
        self._deadline = clock() + timeout_s
        self._failed = 0

    def remaining_s(self) -> float:
        """Returns the seconds left for the next attempt; raises DeadlineExceeded where none are
        left."""
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            raise DeadlineExceeded(
                f"timeout: got no answer within {self._timeout_s:g} s, {self._failed} attempts "
                "failed; wait longer, or look at the server's load"
            )
        return remaining

    def wait_s(self, error: Unavailable) -> float:
        """Returns the seconds to sleep before the next attempt; raises `error` when this was the
        last one."""
        # A refusal by an overloaded server is retried as often as time allows: it tells when to.
        retries = self._retry.retries
        tries = inf if isinstance(error, Overloaded) and retries else retries
        # A request that expired once would have no more time in another attempt.
        if self._failed >= tries or isinstance(error, Expired):
            raise error
        wait = self._retry.wait_s(self._failed, error.retry_after_s or 0.0)
        # A wait that ends after the deadline would only delay the error.
        if self._clock() + wait >= self._deadline:
            raise error
        self._failed += 1
        return wait

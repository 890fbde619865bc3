"""Exponential back-off between attempts at an operation that keeps failing."""

from __future__ import annotations

import math
import time

_FIRST_S = 1.0
_LAST_S = 60.0


class Backoff:
    """Attempts begin at least 1, 2, 4 … 60 s apart, and from 1 s again after a minute without
    failure."""

    def __init__(self) -> None:
        self._attempts = 0
        self._due_at = 0.0
        self._healthy_since = math.inf

    def wait_s(self) -> float:
        """Returns the seconds until the next attempt is due, 0 when it is due."""
        return max(0.0, self._due_at - time.monotonic())

    def begin(self) -> None:
        """Records that an attempt begins now."""
        self._due_at = time.monotonic() + min(_LAST_S, _FIRST_S * 2**self._attempts)
        self._attempts += 1

    def succeeded(self) -> None:
        """Records that the last attempt succeeded. What it began is healthy until `ended`."""
        self._healthy_since = time.monotonic()

    def ended(self) -> None:
        """Records that what the last attempt began has failed now."""
        if time.monotonic() - self._healthy_since >= _LAST_S:
            self._attempts = 0
        self._healthy_since = math.inf

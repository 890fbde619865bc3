"""Exponential back-off between attempts at something that keeps failing."""

from __future__ import annotations

import math
import time

_FIRST_S = 1.0
_LAST_S = 60.0


class Backoff:
    """Attempts begin at least 1, 2, 4 … 60 s apart; from 1 s again after a minute of health."""

    def __init__(self) -> None:
        self._attempts = 0
        self._due_at = 0.0
        self._healthy_since = math.inf

    def wait_s(self) -> float:
        """The time until the next attempt is due, 0 when it is."""
        return max(0.0, self._due_at - time.monotonic())

    def begin(self) -> None:
        """An attempt begins now."""
        self._due_at = time.monotonic() + min(_LAST_S, _FIRST_S * 2**self._attempts)
        self._attempts += 1

    def succeeded(self) -> None:
        """The last attempt succeeded: health lasts from now until `ended`."""
        self._healthy_since = time.monotonic()

    def ended(self) -> None:
        """What the last attempt began has failed now."""
        if time.monotonic() - self._healthy_since >= _LAST_S:
            self._attempts = 0
        self._healthy_since = math.inf

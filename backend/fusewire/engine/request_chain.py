"""Requests of an engine that answer one of a client together: each begins when the one before has
ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Link(Protocol):
    """The ticket of one request of a chain."""

    @property
    def cancel(self) -> Callable[[], None]: ...
    @property
    def num_output_tokens(self) -> Callable[[], int]: ...


class RequestChain:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Link | None = None
        self._cancelled = False

    def begun(self, first: Link) -> None:
        """Takes the first request, before its ticket is given away; it may have ended."""
        with self._lock:
            self._current = self._current or first

    def follow(self, submit: Callable[[], Link]) -> None:
        """Submits the next request, in the engine's thread, which computes nothing of it
        meanwhile."""
        following = submit()
        with self._lock:
            self._current = following
            cancelled = self._cancelled
        if cancelled:
            following.cancel()

    def cancel(self) -> None:
        """Cancels the request that runs, from any thread; none follows it."""
        with self._lock:
            self._cancelled = True
            current = self._current
        if current is not None:
            current.cancel()

    def num_output_tokens(self) -> int:
        """Tokens that the request that runs has generated so far."""
        current = self._current
        return 0 if current is None else current.num_output_tokens()

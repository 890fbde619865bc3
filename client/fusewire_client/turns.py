"""Threads or asyncio tasks wait here for their turn to send a request of one call, as its Pace
allows."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

from .errors import Cancelled
from .pace import Pace, Turn


class ThreadTurns:
    """Turns of threads."""

    def __init__(self, most: int) -> None:
        """`most`: maximum number of requests in flight."""
        self._pace = Pace(most)
        self._changed = threading.Condition()
        self._closed = False
        self._leaves: list[Callable[[], object]] = []  # of requests that run

    def begin(self) -> Turn:
        """Waits until one more request may be in flight. Raises Cancelled once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._pace.room or self._closed)
            if self._closed:
                raise Cancelled("call: got an error of another of its requests, which ends it")
            return self._pace.begin()

    def end(self, *, answered: bool) -> None:
        """Counts the end of a request that was not refused."""
        with self._changed:
            self._pace.end(answered=answered)
            self._changed.notify_all()

    def refused(self, turn: Turn, timeout_s: float) -> bool:
        """Waits until another request was answered, at most `timeout_s`; returns False where none
        was."""
        with self._changed:
            self._pace.refuse(turn)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._pace.settled(turn), timeout_s)
            return self._pace.may_return(turn)

    @contextlib.contextmanager
    def leaving(self, leave: Callable[[], object]) -> Iterator[None]:
        """Within it `close` calls `leave`, which ends a request that another thread waits for."""
        with self._changed:
            self._leaves.append(leave)
            closed = self._closed
        if closed:
            leave()
        try:
            yield
        finally:
            with self._changed:
                self._leaves.remove(leave)

    def close(self) -> None:
        """Ends the streams that run, and stops further requests from beginning."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            leaves = [*self._leaves]
        for leave in leaves:
            leave()


class TaskTurns:
    """Turns of the tasks of one event loop."""

    def __init__(self, most: int) -> None:
        """As ThreadTurns.__init__."""
        self._pace = Pace(most)
        self._changed = asyncio.Event()

    async def begin(self) -> Turn:
        """As ThreadTurns.begin."""
        while not self._pace.room:
            await self._changed.wait()
        return self._pace.begin()

    def end(self, *, answered: bool) -> None:
        """As ThreadTurns.end."""
        self._pace.end(answered=answered)
        self._tell()

    async def refused(self, turn: Turn, timeout_s: float) -> bool:
        """As ThreadTurns.refused."""
        self._pace.refuse(turn)
        self._tell()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._pace.settled(turn):
                    await self._changed.wait()
        return self._pace.may_return(turn)

    def _tell(self) -> None:
        self._changed.set()  # wakes all current waiters; later ones wait for the next event
        self._changed = asyncio.Event()

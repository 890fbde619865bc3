"""Requests in flight. Each can be ended from outside, where no answer to it will come."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fusewire.serving.openai.errors import ApiError

T = TypeVar("T")


class Call:
    """One request, from its first byte to the last byte of its answer."""

    def __init__(self) -> None:
        self.model: str | None = None  # None until it is known
        self.usage: Mapping[str, Any] = {}  # tokens, as in the answer
        self.began = time.monotonic()
        self._waiting: asyncio.Task[object] | None = None
        self._ended: str | None = None  # the reason

    def end(self, why: str) -> None:
        """Makes the current or next wait of the request raise an error of status 503."""
        self._ended = why
        if self._waiting is not None:
            self._waiting.cancel()

    async def unless_ended(self, work: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `work`, which is cancelled when the request is ended."""
        if self._ended is not None:
            raise ApiError(503, self._ended)
        task = self._waiting = asyncio.current_task()
        assert task is not None
        try:
            return await work()
        except asyncio.CancelledError:
            if self._ended is None:
                raise
            task.uncancel()
            raise ApiError(503, self._ended) from None
        finally:
            self._waiting = None


class InFlight:
    """All requests without a complete answer."""

    def __init__(self) -> None:
        self._calls: weakref.WeakSet[Call] = weakref.WeakSet()

    def begin(self) -> Call:
        call = Call()
        self._calls.add(call)
        return call

    def end(self, why: str, model: str | None = None, began_before: float | None = None) -> None:
        """Ends the requests of a model, or of all models, that began before `began_before` (None:
        now)."""
        for call in list(self._calls):
            if model in (None, call.model) and (began_before is None or call.began < began_before):
                call.end(why)

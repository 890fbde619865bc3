"""What every engine is to those who submit requests to it, encoders and generation alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from fusewire.engine.progress import Progress

Asked = TypeVar("Asked", contravariant=True)
Event = TypeVar("Event", covariant=True)


class Ticket(Protocol):
    """A request that was taken."""

    @property
    def deadline(self) -> float | None:
        """The request's own deadline, by time.monotonic(), else that of the model's `slo_ms`, if
        there is one."""

    def cancel(self) -> None:
        """Cancels the request, from any thread. What has not ended soon does, with the error
        Cancelled."""


class Engine(Protocol[Asked, Event]):
    """Takes requests at any time, from any thread, until closed."""

    @property
    def progress(self) -> Progress: ...

    def submit(
        self, request: Asked, deadline: float | None, callback: Callable[[Event], None]
    ) -> Ticket:
        """Takes a request, or raises the FusewireError that it is refused with.

        `deadline`: by time.monotonic(). What is not computed by then is answered DeadlineExceeded,
        and not computed. `callback` gets the request's events in order, from any thread, and must
        return at once; a FusewireError is the last.
        """

    def together(self) -> AbstractContextManager[None]:
        """Requests that this thread submits within it came together. The thread may compute them at
        the end: some have their answer then."""

    def close(self, drain_seconds: float = 0.0) -> None:
        """Takes no more requests, works on those it has for at most `drain_seconds`, and ends the
        rest. Every request has its last event on return."""

"""A request whose language is heard first, by a request of its own, which stores what the encoder
makes of the sound for both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from fusewire.engine.branches import Event
from fusewire.engine.continuation import Delta
from fusewire.engine.request import failure
from fusewire.errors import FusewireError


class _Ticket(Protocol):
    @property
    def cancel(self) -> Callable[[], None]: ...
    @property
    def num_output_tokens(self) -> Callable[[], int]: ...


class LanguageDetection:
    """Takes the events of the first request; the second one's go to the callback."""

    def __init__(self, go_on: Callable[[int], _Ticket], callback: Callable[[Event], None]) -> None:
        """`go_on`: submits the second request, once the token of the language is known."""
        self._go_on = go_on
        self._callback = callback
        self._lock = threading.Lock()
        self._tickets: list[_Ticket] = []
        self._second: _Ticket | None = None
        self._cancelled = False

    def begun(self, first: _Ticket) -> None:
        """Before the first request's ticket is given away; its events may have come."""
        with self._lock:
            self._tickets.append(first)

    def heard(self, event: Event) -> None:
        """In the engine's thread."""
        if isinstance(event, FusewireError):
            self._callback(event)
            return
        assert isinstance(event, Delta)
        assert event.token is not None
        try:
            second = self._go_on(event.token)
        except Exception as error:
            self._callback(failure(error))
            return
        with self._lock:
            self._second = second
            cancelled = self._cancelled
        if cancelled:
            second.cancel()

    def cancel(self) -> None:
        """From any thread; whichever of the two requests runs ends."""
        with self._lock:
            self._cancelled = True
            tickets = [*self._tickets, *([] if self._second is None else [self._second])]
        for ticket in tickets:
            ticket.cancel()

    def num_output_tokens(self) -> int:
        """Of the second request."""
        return 0 if self._second is None else self._second.num_output_tokens()

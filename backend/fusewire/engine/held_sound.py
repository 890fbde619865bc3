"""How much sound an engine has at once: its features are memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fusewire.engine.branches import Event
from fusewire.errors import FusewireError, QueueFull


class HeldSound:
    """The seconds of all sounds that run and wait. From any thread."""

    def __init__(self, most_seconds: float) -> None:
        self._most = most_seconds
        self._held = 0.0
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        return self._held

    def take(self, seconds: float) -> None:
        """QueueFull where they are too much beside the others."""
        with self._lock:
            if self._held + seconds > self._most:
                raise QueueFull(
                    f"queue: got {self._held + seconds:.0f} s of sound to write down at once, "
                    f"wanted at most {self._most:.0f} s; try again later, or raise "
                    "max_audio_seconds"
                )
            self._held += seconds

    def leave(self, seconds: float) -> None:
        with self._lock:
            self._held -= seconds

    def until_the_end(
        self, seconds: float, callback: Callable[[Event], None]
    ) -> Callable[[Event], None]:
        """Passes the events of a text on; its seconds leave with the last one."""

        def told(event: Event) -> None:
            if isinstance(event, FusewireError) or event.finish_reason is not None:
                self.leave(seconds)
            callback(event)

        return told

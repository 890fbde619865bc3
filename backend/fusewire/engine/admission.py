"""Who is taken: no more sequences at a time than run and wait."""

from __future__ import annotations

import threading

from fusewire.errors import QueueFull


class Admission:
    """Counts sequences from when they are taken until they end. From any thread, so that who asks
    is refused there and then."""

    def __init__(self, max_sequences: int, max_waiting: int) -> None:
        """`max_sequences` run at a time: only those beyond wait."""
        self._max_sequences = max_sequences
        self._max_waiting = max_waiting
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, sequences: int) -> None:
        """A request's sequences, all or none: QueueFull."""
        with self._lock:
            waiting = self._taken - self._max_sequences
            if waiting >= self._max_waiting:
                raise QueueFull(
                    f"queue: got {waiting} sequences waiting, wanted fewer than "
                    f"{self._max_waiting}; try again later, or raise max_waiting"
                )
            self._taken += sequences

    def leave(self, sequences: int = 1) -> None:
        with self._lock:
            self._taken -= sequences

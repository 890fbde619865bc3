"""Who is taken to generate: no more sequences at a time than run and wait, and none that would wait
too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf

from fusewire.errors import Overloaded, QueueFull

# Of the seconds between two ends, what is remembered of those before the last.
_DECAY = 0.9


class Admission:
    """Counts sequences from when they are taken until they end. From any thread, so that who asks
    is refused there and then.

    How long one would wait is predicted by Little's law: those before it, times the seconds from
    the end of one sequence to that of the next while others wait. None is refused by it before two
    have ended so.
    """

    def __init__(
        self,
        max_sequences: int,
        max_waiting: int,
        max_queue_s: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_sequences` run at a time: only those beyond wait, predictably at most
        `max_queue_s`."""
        self._max_sequences = max_sequences
        self._max_waiting = max_waiting
        self._max_queue_s = max_queue_s
        self._clock = clock
        self._taken = 0
        self._between_ends_s = 0.0
        self._last_end: float | None = None  # while others waited
        self._lock = threading.Lock()

    def take(self, sequences: int, deadline: float | None = None) -> None:
        """A request's sequences, all or none: QueueFull; Overloaded where they would begin to run
        after the deadline (time.monotonic()), or wait too long."""
        with self._lock:
            waiting = self._taken - self._max_sequences
            if waiting >= self._max_waiting:
                raise QueueFull(
                    f"queue: got {waiting} sequences waiting, wanted fewer than "
                    f"{self._max_waiting}; try again later, or raise max_waiting"
                )
            wait_s = max(0, waiting + sequences) * self._between_ends_s
            room_s = self._max_queue_s
            if deadline is not None:
                # A deadline that has passed is answered as late, not as too much.
                left_s = deadline - self._clock()
                room_s = min(room_s, left_s) if left_s > 0 else inf
            if wait_s > room_s:
                raise Overloaded(
                    f"queue: got a predicted wait of {wait_s:.2f} s, wanted at most {room_s:.2f} "
                    "s; allow it more",
                    wait_s - room_s,
                )
            self._taken += sequences

    def leave(self, sequences: int = 1, *, ran: bool = True) -> None:
        """They have ended; `ran`: or else they were refused after all."""
        with self._lock:
            if ran:
                self._measure(sequences)
            self._taken -= sequences

    def _measure(self, sequences: int) -> None:
        if self._taken <= self._max_sequences:  # nobody waits: ends are as far apart as arrivals
            self._last_end = None
            return
        now = self._clock()
        if self._last_end is not None:
            each = (now - self._last_end) / sequences
            known = self._between_ends_s
            self._between_ends_s = _DECAY * known + (1 - _DECAY) * each if known else each
        self._last_end = now

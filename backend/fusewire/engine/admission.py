"""Who is taken: no more sequences than may run and wait, and none that would wait too long."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from math import inf

from fusewire.errors import Overloaded, QueueFull

# Of the time that sequences took to leave, what is remembered with each that leaves.
_DECAY = 0.95
# Who was refused at the same time does not come back at the same time.
_JITTER = 0.2


class Admission:
    """Counts sequences from when they are taken until they end. From any thread, so that who asks
    is refused there and then.

    While all run that may, the time from one end to the next says how long who waits has to: so
    many times that as sequences have to end before (Little, 1961).
    """

    def __init__(
        self,
        max_sequences: int,
        max_waiting: int,
        max_queue_s: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_sequences` run at a time: only those beyond wait, each at most `max_queue_s`, as
        predicted."""
        self._max_sequences = max_sequences
        self._max_waiting = max_waiting
        self._max_queue_s = max_queue_s
        self._clock = clock
        self._taken = 0
        self._elapsed_s = self._left = 0.0  # while others waited: the time, and who left in it
        self._since: float | None = None  # others wait, and when the last one left
        self._lock = threading.Lock()

    def take(self, sequences: int, deadline: float | None = None) -> None:
        """A request's sequences, all or none: QueueFull, of which Overloaded where the first could
        not begin before the deadline, by `clock`."""
        with self._lock:
            waiting = self._taken - self._max_sequences
            if waiting >= self._max_waiting:
                raise QueueFull(
                    f"queue: got {waiting} sequences waiting, wanted fewer than "
                    f"{self._max_waiting}; try again later, or raise max_waiting"
                )
            if waiting >= 0 and self._left:
                wait_s = (waiting + 1) * self._elapsed_s / self._left
                room_s = inf if deadline is None else deadline - self._clock()
                room_s = min(room_s, self._max_queue_s)
                if wait_s > room_s:
                    raise Overloaded(
                        f"queue: got {wait_s:.3f} s until this request could begin, wanted at most "
                        f"{max(room_s, 0.0):.3f} s; allow it more",
                        wait_s * random.uniform(1 - _JITTER, 1 + _JITTER),
                    )
            self._taken += sequences
            if self._since is None and self._taken > self._max_sequences:
                self._since = self._clock()

    def leave(self, sequences: int = 1, *, computed: bool = True) -> None:
        """They have ended. `computed`: they were not refused after all."""
        with self._lock:
            if self._since is not None and computed:
                now = self._clock()
                self._elapsed_s = _DECAY * self._elapsed_s + now - self._since
                self._left = _DECAY * self._left + sequences
                self._since = now
            self._taken -= sequences
            if self._taken <= self._max_sequences:
                self._since = None

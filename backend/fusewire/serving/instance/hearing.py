"""The queues of requests with sound: long sound has threads of its own, so that short sound always
finds one that is free or soon will be."""

from __future__ import annotations

from collections.abc import Callable

from fusewire.audio import LogMel, LongerSound, ReadsSound, SoundProcesses
from fusewire.text.work_queue import WorkQueue

# Reading this much takes some 0.2 s, and an hour sixty times as long.
SHORT_SECONDS = 60
# Each has a process.
_SHORT_THREADS = 4
_LONG_THREADS = 2
# How long to wait for what is being read, once its processes were killed.
_KILLED_S = 1.0


class Hearing:
    """Reads the sound of one model's requests in processes, until closed."""

    def __init__(self, log_mel: LogMel, most_seconds: int, most_waiting: int) -> None:
        """`most_seconds`: the longest sound that is read. `most_waiting`: requests that may wait
        with sound not yet known to be long, and as many with long sound."""
        short = min(SHORT_SECONDS, most_seconds)
        self._short = SoundProcesses(log_mel, most_seconds, short)
        self._long = SoundProcesses(log_mel, most_seconds, most_seconds)
        self._arrived = WorkQueue("queue: got sound", most_waiting, threads=_SHORT_THREADS)
        self._found_long = WorkQueue("queue: got long sound", most_waiting, threads=_LONG_THREADS)

    def take(self, begin: Callable[[ReadsSound], None], fail: Callable[[Exception], None]) -> None:
        """Queues a request; QueueFull. `begin`: reads and submits it, and is called again where its
        sound is long. `fail`: gets its error."""

        def with_short() -> None:
            try:
                begin(self._short)
            except LongerSound:
                self._found_long.take(lambda: begin(self._long), fail)

        self._arrived.take(with_short, fail)

    def close(self) -> None:
        """Waits a while for what is queued; what is left then is Unavailable."""
        queues, readers = (self._arrived, self._found_long), (self._short, self._long)
        for queue in queues:
            queue.close()
        for reader in readers:
            reader.kill()
        for queue in queues:
            queue.close(_KILLED_S)
        for reader in readers:
            reader.close()

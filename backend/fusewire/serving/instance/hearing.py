"""The queues of requests with audio. Long audio has its own threads, so that short audio never
waits for it."""

from __future__ import annotations

from collections.abc import Callable

from fusewire.audio import AudioProcesses, LogMel, LongerAudio, ReadsAudio
from fusewire.text.work_queue import WorkQueue

# Reading this much audio takes some 0.2 s. An hour takes sixty times as long.
SHORT_SECONDS = 60
# Each thread has a process.
_SHORT_THREADS = 4
_LONG_THREADS = 2
# Time limit for requests that are being read, after their processes are killed.
_KILLED_S = 1.0


class Hearing:
    """Reads the audio of one model's requests in processes, until it is closed."""

    def __init__(self, log_mel: LogMel, most_seconds: int, most_waiting: int) -> None:
        """`most_seconds`: the longest audio that is read. `most_waiting`: the maximum number of
        waiting requests with audio that is not yet known to be long, and of those with long
        audio."""
        short = min(SHORT_SECONDS, most_seconds)
        self._short = AudioProcesses(log_mel, most_seconds, short)
        self._long = AudioProcesses(log_mel, most_seconds, most_seconds)
        self._arrived = WorkQueue("queue: got audio", most_waiting, threads=_SHORT_THREADS)
        self._found_long = WorkQueue("queue: got long audio", most_waiting, threads=_LONG_THREADS)

    def take(self, begin: Callable[[ReadsAudio], None], fail: Callable[[Exception], None]) -> None:
        """Queues a request. Raises QueueFull. `begin` reads and submits it, and is called again
        where its audio is long. `fail` is called with its error."""

        def with_short() -> None:
            try:
                begin(self._short)
            except LongerAudio:
                self._found_long.take(lambda: begin(self._long), fail)

        self._arrived.take(with_short, fail)

    def close(self) -> None:
        """Waits for the queued requests for a limited time. The remaining ones get Unavailable."""
        queues, readers = (self._arrived, self._found_long), (self._short, self._long)
        for queue in queues:
            queue.close()
        for reader in readers:
            reader.kill()
        for queue in queues:
            queue.close(_KILLED_S)
        for reader in readers:
            reader.close()

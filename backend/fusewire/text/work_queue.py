"""Processes requests that take seconds to read apart from a model's other requests.

Tokenising a text of megabytes takes seconds, and the time of a chat template is not limited. Both
release the interpreter to other threads, so they have their own threads. Long texts are processed
one at a time, as they take a hundred times their size in memory.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from fusewire.errors import QueueFull

_log = logging.getLogger(__name__)

# Total characters of a request's texts: a tenth of a second's work.
LONG_CHARACTERS = 1 << 17
MOST_WAITING = 8
# For the tasks that are still waiting when the model is unloaded.
_DRAIN_S = 5.0


class WorkQueue:
    """Runs tasks in order of arrival, as many at once as it has threads, until it is closed."""

    def __init__(
        self,
        what: str = f"text_input: got over {LONG_CHARACTERS} characters",
        most_waiting: int = MOST_WAITING,
        *,
        threads: int = 1,
    ) -> None:
        """`what`: the beginning of the error where too many tasks wait."""
        self._full = (
            f"{what} while {most_waiting} such requests wait, wanted fewer; try again later"
        )
        self._waiting = threading.BoundedSemaphore(most_waiting)
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name="work queue", daemon=True)
            for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, work: Callable[[], None], fail: Callable[[Exception], None]) -> None:
        """Queues a task. `fail` is called with its error. Raises QueueFull."""

        def work_or_fail() -> None:
            try:
                work()
            except Exception as error:
                fail(error)

        self.reserve()
        self.put(work_or_fail)

    def reserve(self) -> None:
        """Reserves a place for `put` or `give_back`. Raises QueueFull."""
        if not self._waiting.acquire(blocking=False):
            raise QueueFull(self._full)

    def put(self, work: Callable[[], None]) -> None:
        """Queues a task with a reserved place. The task answers its request, also with errors."""
        self._works.put(work)

    def give_back(self) -> None:
        """Releases a reserved place."""
        self._waiting.release()

    def close(self, drain_seconds: float = _DRAIN_S) -> None:
        """Waits at most `drain_seconds` for the tasks in the queue."""
        for _ in self._threads:
            self._works.put(None)
        until = time.monotonic() + drain_seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            try:
                work()
            except Exception:
                _log.exception("a request with a long text could not be answered")
            del work  # frees its text
            self._waiting.release()

"""Long texts, tokenised apart from a model's other requests.

Tokenising a text of megabytes takes seconds. It leaves the interpreter to other threads meanwhile,
so it has a thread of its own; one at a time, as it takes a hundred times the text's memory, too.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from fusewire.errors import Unavailable

_log = logging.getLogger(__name__)

# Characters of a request's texts: a tenth of a second's work.
LONG = 1 << 17
MOST_WAITING = 8
# For what is still waiting when the model is unloaded.
_DRAIN_S = 5.0


class Aside:
    """Runs one task after the other, in a thread, until closed."""

    def __init__(self) -> None:
        self._waiting = threading.BoundedSemaphore(MOST_WAITING)
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="aside", daemon=True)
        self._thread.start()

    def take(self, work: Callable[[], None]) -> None:
        """Queues a task, which answers its request, errors included; Unavailable."""
        if not self._waiting.acquire(blocking=False):
            raise Unavailable(
                f"text_input: got over {LONG} characters while {MOST_WAITING} such requests wait, "
                "wanted fewer; try again later"
            )
        self._works.put(work)

    def close(self) -> None:
        self._works.put(None)
        self._thread.join(_DRAIN_S)

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            try:
                work()
            except Exception:
                _log.exception("a request with a long text could not be answered")
            del work  # with its text
            self._waiting.release()

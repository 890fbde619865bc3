"""The thread that computes: a step after another while there are requests, calls of other threads
between steps."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from fusewire.engine.branches import Generation
from fusewire.engine.generation_loop import GenerationLoop
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.request import CANCELLED, CLOSED, failure
from fusewire.errors import Cancelled, FusewireError, Unavailable

_log = logging.getLogger(__name__)
# Far more than any step takes: a device that has hung must not hang the program's end.
_LONGEST_STEP_S = 60.0
_FORKED = "engine: got a request in a forked process, wanted it where it was loaded; load it here"


class GenerationThread:
    """Runs one loop, from now until closed. Methods are called from any thread."""

    def __init__(self, loop: GenerationLoop) -> None:
        self._loop = loop
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._submit_lock = threading.Lock()
        self._closing = self._cancelling = False
        self._own = threading.local()  # `together`: requests of a thread that come together
        self._opened = 0  # how many of these blocks have requests
        self._failed: FusewireError | None = None  # why it ended before it was closed
        self._thread = threading.Thread(target=self._run, name="generate", daemon=True)
        self._thread.start()

    @property
    def runs_here(self) -> bool:
        """Whether the calling thread is this one."""
        return threading.current_thread() is self._thread

    def add(
        self, generation: Generation, sequence: GenerationSequence, *, goes_on: bool
    ) -> Callable[[], None]:
        """Hands a request over; returns what cancels it. Cancelled, Unavailable. `goes_on`: part of
        one that was taken before, which closing waits for."""
        with self._submit_lock:  # what is put before closing is done before the loop ends
            if goes_on and self._cancelling:
                raise Cancelled(CANCELLED)
            if self._closing and not goes_on:
                raise Unavailable(CLOSED)
            if not self._thread.is_alive():
                raise Unavailable(_FORKED)
            together = getattr(self._own, "together", None)
            if together is None:
                self._asked.put(partial(self._loop.add, generation, sequence))
            else:
                self._opened += not together
                together.append((generation, sequence))
        return partial(self._cancel, generation)

    def _cancel(self, generation: Generation) -> None:
        self._asked.put(partial(self._loop.cancel, generation))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hands the requests that the calling thread adds within it over at its end, so that they
        begin in one step: the thread waits for none of them before. `close` waits for the end."""
        added: list[tuple[Generation, GenerationSequence]] = []
        self._own.together = added
        try:
            yield
        finally:
            self._own.together = None
            if added:
                self._hand_over(added)

    def _hand_over(self, added: Sequence[tuple[Generation, GenerationSequence]]) -> None:
        with self._submit_lock:
            self._opened -= 1
            failed = self._failed
            if failed is None:
                self._asked.put(partial(self._loop.add_all, added))
                if self._cancelling:
                    self._asked.put(self._loop.cancel_all)
        if failed is not None:  # nobody computes any more
            self._loop.add_all(added)
            self._loop.fail_all(failed)

    def call(self, work: Callable[[], None]) -> None:
        """Calls `work` between steps, and returns when it has; raises what it raises."""
        ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

        def noted() -> None:
            try:
                work()
                ended.put(None)
            except Exception as error:
                ended.put(error)

        self._asked.put(noted)
        if (error := ended.get()) is not None:
            raise error

    def close(self, drain_seconds: float) -> None:
        """See GenerationEngine."""
        with self._submit_lock:
            self._closing = True
        self._asked.put(lambda: None)
        self._thread.join(drain_seconds)
        with self._submit_lock:  # what was added before is cancelled, and nothing goes on
            self._cancelling = True
            self._asked.put(self._loop.cancel_all)
        self._thread.join(_LONGEST_STEP_S)
        if self._thread.is_alive():
            _log.error(
                "close: a step has not ended within %g s; the device hangs, restart the process",
                _LONGEST_STEP_S,
            )

    def _run(self) -> None:
        try:
            while not self._is_done():
                self._take()
                self._loop.step(time.monotonic())
        except Exception as error:  # a defect: no request may wait for an answer that never comes
            failed = failure(error)
            with self._submit_lock:
                self._closing, self._failed = True, failed
            while not self._asked.empty():
                self._asked.get()()
            self._loop.fail_all(failed)

    def _is_done(self) -> bool:
        if not (self._closing and self._loop.idle):
            return False
        with self._submit_lock:  # what a block hands over at its end is always in one of these
            return not self._opened and self._asked.empty()

    def _take(self) -> None:
        """Runs the calls that were queued since the last step; waits for one when idle."""
        wait = self._loop.idle
        while wait or not self._asked.empty():
            self._asked.get()()
            wait = False

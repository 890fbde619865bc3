"""The workers of one model: one for short requests, and one for long ones, which may take seconds.

Each has a queue and a thread of its own, which starts the worker, calls it, and replaces it when it
misses a deadline or dies. So a folder can delay only requests for its own model.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError, FusewireError, InvalidInput, QueueFull, Unavailable
from fusewire.worker_processes.messages import MOST_BYTES, encoded
from fusewire.worker_processes.process import WorkerDied, WorkerLate, WorkerProcess

# Deadline for the work of one call: a hundred times as long as the longest conversation takes.
DEADLINE_S = 10.0
# Maximum time in a queue; then a call is refused, since its client has little time left.
MOST_WAIT_S = 30.0
# Calls with longer messages take over a tenth of a second, and go to the queue of long ones.
LONG_BYTES = 1 << 17
MOST_WAITING = 1024
MOST_LONG_WAITING = 8
_CLOSE_S = 5.0
_STOPS = "text worker: got a request while it stops, wanted one before; send it to another server"


class TextWorkers:
    """Renders and tokenises for one model, from any thread, until it is closed."""

    def __init__(
        self,
        folder: Path,
        *,
        max_length: int,
        chat_template: Path | None = None,
        lowercase: bool = False,
    ) -> None:
        """Arguments as in TextProcessor.load. A worker is started when it is first needed."""
        configuration = {
            "folder": str(folder.absolute()),
            "max_length": max_length,
            "chat_template": None if chat_template is None else str(chat_template.absolute()),
            "lowercase": lowercase,
        }
        self._folder = folder
        self._short = _Lane(configuration, MOST_WAITING)
        self._long = _Lane(configuration, MOST_LONG_WAITING)
        self._description: Mapping[str, Any] | None = None

    def description(self) -> Mapping[str, Any]:
        """Returns TextProcessor's description. The first call waits until the folder is loaded.
        Raises CheckpointError."""
        if self._description is None:
            try:
                self._description = self._short.submit(_Call("", None)).result()
            except (WorkerLate, WorkerDied) as error:
                raise CheckpointError(
                    f"{self._folder.name}: got a tokenizer or chat template that its worker cannot "
                    f"load ({error}), wanted one that it can; take the model from a source you "
                    "trust"
                ) from None
        return self._description

    def submit(self, method: str, field: str, **arguments: Any) -> Future[Any]:
        """Returns the future of the result of TextProcessor's `method`, or of its error. The error
        is also InvalidInput if the call takes too long or too much memory, and Unavailable if the
        worker dies repeatedly. Raises QueueFull at once if too many calls wait."""
        message = encoded({"method": method, "field": field, "arguments": arguments})
        if len(message) > MOST_BYTES:
            got, most = f"{len(message)} bytes", f"at most {MOST_BYTES}"
            raise InvalidInput(field, got, most, "shorten it")
        lane = self._short if len(message) <= LONG_BYTES else self._long
        return lane.submit(_Call(field, message))

    def close(self) -> None:
        """Ends the workers; waiting calls end with Unavailable."""
        lanes = (self._short, self._long)
        for lane in lanes:
            lane.stop()
        for lane in lanes:
            lane.join()


@dataclass
class _Call:
    name: str  # name of the request's field
    message: bytes | None  # None: asks for the description
    future: Future[Any] = field(default_factory=Future)
    began: float = field(default_factory=time.monotonic)


class _Lane:
    """A worker process, the thread that calls it, and the queue of calls."""

    def __init__(self, configuration: Mapping[str, Any], most_waiting: int) -> None:
        self._configuration = configuration
        self._most_waiting = most_waiting
        self._places = threading.BoundedSemaphore(most_waiting)
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the next two, and putting calls into the queue
        self._process: WorkerProcess | None = None
        self._stopping = False
        self._description: Mapping[str, Any] = {}
        self._thread = threading.Thread(target=self._run, name="text worker", daemon=True)
        self._thread.start()

    def submit(self, call: _Call) -> Future[Any]:
        with self._lock:
            if self._stopping:
                raise Unavailable(_STOPS)
            if not self._places.acquire(blocking=False):
                raise QueueFull(
                    f"queue: got {self._most_waiting} requests waiting for the model's tokenizer, "
                    "wanted fewer; try again later"
                )
            self._calls.put(call)
        return call.future

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            if self._process is not None:
                self._process.kill()
            self._calls.put(None)

    def join(self) -> None:
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            self._places.release()
            if call.future.set_running_or_notify_cancel():
                try:
                    call.future.set_result(self._result(call))
                except Exception as error:
                    call.future.set_exception(error)
            del call
        if self._process is not None:
            self._process.close()

    def _result(self, call: _Call) -> Any:
        waited = time.monotonic() - call.began
        if waited > MOST_WAIT_S:
            raise QueueFull(
                f"queue: got a request that waited {waited:.0f} s for the model's tokenizer, "
                f"wanted at most {MOST_WAIT_S:g} s; try again later"
            )
        try:
            return self._answer(call.message)
        except (WorkerLate, WorkerDied) as error:
            if self._stopping:
                raise Unavailable(_STOPS) from None
            if call.message is None:
                raise
            raise _failure(call.name, error) from None

    def _answer(self, message: bytes | None) -> Any:
        for again in (True, False):  # retry once: the worker may have been killed while idle
            try:
                process = self._running()
                if message is None:
                    return self._description
                return process.call(message, DEADLINE_S)["result"]
            except WorkerDied as death:
                if not again or self._stopping or death.out_of_memory:
                    raise

    def _running(self) -> WorkerProcess:
        """Returns the process, and starts one if there is none."""
        if self._process is None or self._process.ended:
            with self._lock:
                if self._stopping:
                    raise Unavailable(_STOPS)
                self._process = WorkerProcess("fusewire.text_workers.worker", self._configuration)
            self._description = self._process.load()
        return self._process


def _failure(name: str, error: WorkerLate | WorkerDied) -> FusewireError:
    """Returns the error of a request whose field has this name."""
    if isinstance(error, WorkerDied) and not error.out_of_memory:
        words = f"text worker: got {error}, twice, wanted an answer; try again later"
        return Unavailable(words)
    got = f"what the model's chat template or tokenizer cannot read ({error})"
    return InvalidInput(name, got, "what takes less time and memory", "shorten it")

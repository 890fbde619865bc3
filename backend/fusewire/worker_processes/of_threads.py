"""Worker processes of one program, one per calling thread, so that threads do not wait for each
other."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusewire.errors import InvalidInput, Unavailable
from fusewire.worker_processes.messages import MOST_BYTES, encoded
from fusewire.worker_processes.process import WorkerDied, WorkerLate, WorkerProcess

_STOPS = "got a request while it stops, wanted one before; send it to another server"


@dataclass(frozen=True)
class Reads:
    """What the program reads, as error messages name it."""

    process: str  # image process
    one: str  # an image
    smaller: str  # send a smaller image


class ProcessOfEachThread:
    """May be called from any thread. The process of a thread starts with its first call, and ends
    with the thread, see WorkerProcess."""

    def __init__(self, program: str, configuration: Mapping[str, Any], reads: Reads) -> None:
        """`program`, `configuration`: as in WorkerProcess."""
        self._program = program
        self._configuration = configuration
        self._reads = reads
        self._own = threading.local()
        self._lock = threading.Lock()  # guards the attributes below
        self._all: list[WorkerProcess] = []
        self._ending = False

    def call(
        self,
        field: str,
        message: Mapping[str, Any],
        body: bytes | memoryview,
        timeout_s: float,
        most_body_bytes: int = MOST_BYTES,
    ) -> Mapping[str, Any]:
        """Returns the answer to a message with a body, as WorkerProcess does. Raises InvalidInput
        for `field`, as the program raises it or if it takes too much memory or time; Unavailable if
        no process starts, or if two die."""
        head = encoded({**message, "body_bytes": memoryview(body).nbytes})
        for again in (True, False):  # retry once: the process may have been killed while idle
            process = self._running()
            try:
                return process.call(head, timeout_s, body, most_body_bytes)
            except WorkerLate as error:
                raise self._too_much(field, error) from None
            except WorkerDied as death:
                if death.out_of_memory:
                    raise self._too_much(field, death) from None
                if not again:
                    got = f"{self._reads.process}: got {death}, twice"
                    raise Unavailable(f"{got}, wanted an answer; try again later") from None
        raise AssertionError

    def kill(self) -> None:
        """Kills all processes at once; current and later calls raise Unavailable."""
        with self._lock:
            self._ending = True
            for process in self._all:
                process.kill()

    def close(self) -> None:
        """Waits for the end of all processes; to be called when no thread calls any more."""
        for process in self._all:
            process.close()

    def _running(self) -> WorkerProcess:
        """Returns this thread's process, loaded. Raises Unavailable, since no input has been read
        yet."""
        process: WorkerProcess | None = getattr(self._own, "process", None)
        if process is not None and not process.ended:
            return process
        try:
            with self._lock:
                if self._ending:
                    raise Unavailable(f"{self._reads.process}: {_STOPS}")
                process = WorkerProcess(self._program, self._configuration)
                self._all = [each for each in self._all if not each.ended] + [process]
            self._own.process = process
            process.load()
        except (OSError, WorkerLate, WorkerDied) as error:
            got = f"{self._reads.process}: got none ({error})"
            raise Unavailable(f"{got}, wanted one; try again later") from None
        return process

    def _too_much(self, field: str, error: WorkerLate | WorkerDied) -> InvalidInput:
        got = f"{self._reads.one} that cannot be read ({error})"
        return InvalidInput(field, got, "what takes less time and memory", self._reads.smaller)

"""Processes of one program: one for each thread that calls, so that none waits for another."""

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
    """What the program reads, in the words of errors."""

    process: str  # image process
    one: str  # an image
    smaller: str  # send a smaller image


class ProcessOfEachThread:
    """Called from any thread. A thread's process starts with its first call, and ends with it, see
    WorkerProcess."""

    def __init__(self, program: str, configuration: Mapping[str, Any], reads: Reads) -> None:
        """`program`, `configuration`: as WorkerProcess."""
        self._program = program
        self._configuration = configuration
        self._reads = reads
        self._own = threading.local()
        self._lock = threading.Lock()  # over all that follows
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
        """The answer to a message with a body, as WorkerProcess. InvalidInput, of the `field`, as
        the program raises it and where it takes too much memory or time; Unavailable where no
        process starts, or where two die."""
        head = encoded({**message, "body_bytes": memoryview(body).nbytes})
        for again in (True, False):  # a process that was killed while it rested does no harm
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
        """Ends them at once; what is in work, and what comes, is Unavailable."""
        with self._lock:
            self._ending = True
            for process in self._all:
                process.kill()

    def close(self) -> None:
        """Waits for their end; when no thread calls any more."""
        for process in self._all:
            process.close()

    def _running(self) -> WorkerProcess:
        """This thread's, loaded; Unavailable, for nothing has been read yet."""
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

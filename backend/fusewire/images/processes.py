"""Processes that read images: one for each thread that calls, so that none waits for another."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput, Unavailable
from fusewire.images.decode import FIELD
from fusewire.images.preprocess import Preprocessing
from fusewire.worker_processes.messages import encoded
from fusewire.worker_processes.process import WorkerDied, WorkerLate, WorkerProcess

# Of one image, as the processor's time of a call is limited.
DEADLINE_S = 60.0


class ImageProcesses:
    """Called from any thread. A thread's process ends with it, see WorkerProcess."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self._configuration = preprocessing.values()
        self._own = threading.local()
        self._lock = threading.Lock()  # over all that follows
        self._all: list[WorkerProcess] = []
        self._ending = False

    def read(self, data: bytes) -> NDArray[np.float32]:
        """Pixel values [3, height, width] of an encoded image. InvalidInput as Preprocessing, and
        where it takes too much memory or time; Unavailable where no process starts, or where two
        die."""
        message = encoded({"body_bytes": len(data)}) + data
        for again in (True, False):  # a process that was killed while it rested does no harm
            process = self._process()
            try:
                answer = process.call(message, DEADLINE_S)
                return answer["body"].view(np.float32).reshape(answer["result"])
            except WorkerLate as error:
                raise _too_much(error) from None
            except WorkerDied as death:
                if death.out_of_memory:
                    raise _too_much(death) from None
                if not again:
                    words = f"{FIELD}: got {death} of the process that reads images, twice, wanted"
                    raise Unavailable(f"{words} an answer; try again later") from None
        raise AssertionError

    def kill(self) -> None:
        """Ends them at once; images in work, and those that come, are Unavailable."""
        with self._lock:
            self._ending = True
            for process in self._all:
                process.kill()

    def close(self) -> None:
        """Waits for their end; when no thread calls any more."""
        for process in self._all:
            process.close()

    def _process(self) -> WorkerProcess:
        """This thread's, loaded; Unavailable, for no image has been read yet."""
        process: WorkerProcess | None = getattr(self._own, "process", None)
        if process is not None and not process.ended:
            return process
        try:
            with self._lock:
                if self._ending:
                    raise Unavailable(f"{FIELD}: got an image after the end, wanted it earlier")
                process = WorkerProcess("fusewire.images.worker", self._configuration)
                self._all = [each for each in self._all if not each.ended] + [process]
            self._own.process = process
            process.load()
        except (OSError, WorkerLate, WorkerDied) as error:
            words = f"{FIELD}: got no process that reads images ({error}), wanted one"
            raise Unavailable(f"{words}; try again later") from None
        return process


def _too_much(error: WorkerLate | WorkerDied) -> InvalidInput:
    got = f"an image that cannot be read ({error})"
    return InvalidInput(FIELD, got, "what takes less time and memory", "send a smaller image")

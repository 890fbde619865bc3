"""How many requests the server has cancelled, which it counts in shared memory
(csrc/tritonserver/cancellations.cc): while the number stays the same, nobody has left."""

from __future__ import annotations

import logging
import mmap
import os

_log = logging.getLogger(__name__)

FILE = "FUSEWIRE_CANCELLATIONS"  # the environment variable
_BYTES = 8


class Cancellations:
    """The number of the server that this process belongs to."""

    def __init__(self) -> None:
        self._number: memoryview | None = None
        path = os.environ.get(FILE)
        if path is None:  # a server that counts nothing
            return
        try:
            with open(path, "rb") as file:
                memory = mmap.mmap(file.fileno(), _BYTES, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            _log.warning("%s: cannot be read, so the server is asked instead: %s", path, error)
        else:
            self._number = memoryview(memory).cast("Q")

    def count(self) -> int | None:
        """How many requests the server has cancelled so far; None where it is not known."""
        return None if self._number is None else self._number[0]

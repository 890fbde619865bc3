"""Reads how many requests the server has cancelled, a counter in shared memory
(csrc/tritonserver/cancellations.cc). While it is unchanged, no client has left."""

from __future__ import annotations

import logging
import mmap
import os

_log = logging.getLogger(__name__)

FILE = "FUSEWIRE_CANCELLATIONS"  # the environment variable
_BYTES = 8


class Cancellations:
    """The counter of the server that this process belongs to."""

    def __init__(self) -> None:
        self._number: memoryview | None = None
        path = os.environ.get(FILE)
        if path is None:  # the server does not count
            return
        try:
            with open(path, "rb") as file:
                memory = mmap.mmap(file.fileno(), _BYTES, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            _log.warning("%s: cannot be read, so the server is asked instead: %s", path, error)
        else:
            self._number = memoryview(memory).cast("Q")

    def count(self) -> int | None:
        """Returns how many requests the server has cancelled so far, or None where it is not
        known."""
        return None if self._number is None else self._number[0]

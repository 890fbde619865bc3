"""Children of the server that have ended and were not reaped."""

from __future__ import annotations

import time
from collections.abc import Iterable

# The server reaps an unloaded stub within this time; it never reaps a stub that was killed.
_PATIENCE_S = 1.0


class Zombies:
    """Finds the children to reap, again and again while they remain: a killed process can only be
    reaped when its last thread has ended, which may be after its main thread became a zombie."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def due(self, zombies: Iterable[int]) -> list[int]:
        """Returns the children to reap. `zombies`: the process ids of all that exist now."""
        now = time.monotonic()
        self._since = {pid: self._since.get(pid, now) for pid in zombies}
        return [pid for pid, since in self._since.items() if now - since >= _PATIENCE_S]

"""Shared memory between the server and its stubs that outlives a stub.

tritonserver removes the shared memory of a stub that it unloads, but not that of a stub that was
killed or crashed, before or after it began to serve.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from fusewire.serving.supervisor.processes import Stub

# The server makes a region shortly before it starts the stub that opens it by name.
_PATIENCE_S = 5.0


class Regions:
    """Finds the regions to remove: those that no running stub has had for some time."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def due(self, regions: Iterable[str], stubs: Iterable[Stub]) -> list[str]:
        """Returns the regions to remove. `regions`, `stubs`: all that exist now."""
        now = time.monotonic()
        held = {stub.region for stub in stubs}
        self._since = {name: self._since.get(name, now) for name in regions if name not in held}
        return [name for name, since in self._since.items() if now - since >= _PATIENCE_S]

"""Shared memory between the server and its stubs that outlives a stub.

tritonserver removes that of a stub which it unloads, not that of one that was killed or crashed,
whether that had begun to serve or not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from fusewire.serving.supervisor.processes import Stub

# The server makes a region a moment before it starts the stub that opens it by name.
_PATIENCE_S = 5.0


class Regions:
    """Names those that are to be removed, as for some time no living stub has had them."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def due(self, regions: Iterable[str], stubs: Iterable[Stub]) -> list[str]:
        """`regions`, `stubs`: all that there are now."""
        now = time.monotonic()
        held = {stub.region for stub in stubs}
        self._since = {name: self._since.get(name, now) for name in regions if name not in held}
        return [name for name, since in self._since.items() if now - since >= _PATIENCE_S]

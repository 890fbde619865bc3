"""Processes of models that died unheard: tritonserver waits for ever for one that dies before its
first message."""

from __future__ import annotations

import time

from fusewire.serving.supervisor import processes
from fusewire.serving.supervisor.embedded import EmbeddedServer

# Of any other process that dies tritonserver tells much sooner: it gives its model up.
_PATIENCE_S = 5.0
# Seconds between looks: each reads all of /proc.
_LOOK_S = 0.5


class Unheard:
    """Looks for them while one server starts."""

    def __init__(self, process: EmbeddedServer) -> None:
        self._process = process
        self._models: dict[int, str] = {}  # process id -> model, of those that were seen alive
        self._looked_at = self._none_at = time.monotonic()

    def keep_waiting(self) -> bool:
        """Whether there has been one for so long that tritonserver will not tell any more."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            if not self._there_is_one():
                self._none_at = now
        return now - self._none_at > _PATIENCE_S

    def _there_is_one(self) -> bool:
        """Whether more have died than models that are given up; a model that was loaded before had
        one that was heard of."""
        process = self._process
        died = 0
        for pid, state in processes.children(process.pid).items():
            if state == "running" and (stub := processes.stub(pid)) is not None:
                self._models[pid] = stub.model
            died += state == "died" and self._models.get(pid) not in process.loaded
        return died > len(process.failed)

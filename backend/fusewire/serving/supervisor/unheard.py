"""Detects processes of models that died unnoticed: tritonserver waits for ever for a process that
dies before its first message."""

from __future__ import annotations

import time

from fusewire.serving.supervisor import processes
from fusewire.serving.supervisor.embedded import EmbeddedServer

# tritonserver reports any other process that dies much sooner, as a model that failed to load.
_PATIENCE_S = 5.0
# Interval of checks, each of which reads all of /proc.
_LOOK_S = 0.5


class Unheard:
    """Looks for such processes while one server starts."""

    def __init__(self, process: EmbeddedServer) -> None:
        self._process = process
        self._models: dict[int, str] = {}  # process id -> model, of all that were seen running
        self._looked_at = self._none_at = time.monotonic()

    def keep_waiting(self) -> bool:
        """Returns whether there has been such a process for so long that tritonserver will not
        notice it any more."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            if not self._there_is_one():
                self._none_at = now
        return now - self._none_at > _PATIENCE_S

    def _there_is_one(self) -> bool:
        """Whether more processes have died than models have failed to load. Processes of models
        that were loaded before do not count, as tritonserver had messages from them."""
        process = self._process
        died = 0
        for pid, state in processes.children(process.pid).items():
            if state == "running" and (stub := processes.stub(pid)) is not None:
                self._models[pid] = stub.model
            died += state == "died" and self._models.get(pid) not in process.loaded
        return died > len(process.failed)

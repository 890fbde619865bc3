"""Detects processes of models that died unnoticed: tritonserver waits for ever for a process that
dies before its first message."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from fusewire.serving.supervisor import processes
from fusewire.serving.supervisor.embedded import EmbeddedServer

# tritonserver reports any other process that dies much sooner, as a model that failed to load.
_PATIENCE_S = 5.0
# Interval of checks, each of which reads all of /proc.
_LOOK_S = 0.5
# A model that is loading concerns a process that died as long ago, or later.
_RECENT_S = 10.0


def last_words(process: EmbeddedServer) -> str:
    last = "\n".join([line for line in process.last_lines if line][-8:])
    return f"the end of its output:\n{last}"


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


class UnheardLoads:
    """Looks for models that wait for such a process while the server runs."""

    def __init__(self) -> None:
        self._models: dict[int, str] = {}  # process id -> model, of those that run
        self._dead: set[int] = set()
        self._died: dict[str | None, float] = {}  # model, or None where it is not known -> when
        self._since: dict[str, float] = {}  # model -> since when it waits
        self._told: set[str] = set()

    def see(self, children: Mapping[int, processes.State], stubs: Iterable[processes.Stub]) -> None:
        """To be called several times per second, as processes that died are reaped."""
        dead = {pid for pid, state in children.items() if state == "died"}
        now = time.monotonic()
        self._died |= {self._models.get(pid): now for pid in dead - self._dead}
        self._dead, self._models = dead, {stub.pid: stub.model for stub in stubs}

    def due(self, loading: Collection[str]) -> list[str]:
        """Returns the models, each once, that have waited so long that tritonserver will not notice
        it any more. `loading`: the models that it is loading now."""
        now = time.monotonic()
        self._died = {model: at for model, at in self._died.items() if now - at < _RECENT_S}
        waiting = {*loading} - {*self._models.values()}
        self._since = {
            model: self._since.get(model, now)
            for model in waiting
            if model in self._since or model in self._died or None in self._died
        }
        due = [model for model, since in self._since.items() if now - since >= _PATIENCE_S]
        new = [model for model in due if model not in self._told]
        self._told = {*due}
        return new

"""Stand-ins of a server's parts: what a watchdog watches, without tritonserver."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import EndpointError
from fusewire.serving.supervisor.pins import Pins
from fusewire.serving.supervisor.processes import Stub
from fusewire.serving.supervisor.watched import Watched


def config_of(task: str = "embed", instances: int = 1) -> dict[str, Any]:
    """A running model's configuration, as Triton tells it."""
    return {
        "name": "m",
        "backend": "fusewire",
        "parameters": {"task": {"string_value": task}},
        "instance_group": [{"count": instances, "kind": "KIND_CPU"}],
        "version_policy": {"latest": {"num_versions": 1}},
    }


class StandInProcess:
    """A server's process that runs, with the stubs it is given. Its children are the test's."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.alive = True
        self.changes = 0
        self.loaded_at: dict[str, float] = {}
        self.last_lines = ["last words"]
        self.stub_died = False
        self.living: list[Stub] = []
        self.cleared = 0

    def running(self) -> bool:
        return self.alive

    def exit_code(self) -> int:
        return -9

    def stubs(self) -> list[Stub]:
        return list(self.living)

    def reap(self, zombies: Sequence[int]) -> None:
        list(zombies)

    def regions(self) -> list[str]:
        return []

    def remove_regions(self, names: Sequence[str]) -> None:
        assert not names

    def clear(self) -> None:
        self.cleared += 1


class StandInTriton:
    """A server's calls. It has the model versions of `served`, `refused` are the (model, versions)
    it does not load; `error` is what a probe is answered, None: an answer."""

    def __init__(
        self,
        served: dict[str, list[int]],
        config: dict[str, Any] | None = None,
        *,
        error: EndpointError | None = None,
        answered: Iterator[int] | None = None,
        tokens: Iterator[int] | None = None,
        due: float = 0.0,
    ) -> None:
        self.endpoint = self
        self.states = {
            (name, version): "READY" for name, versions in served.items() for version in versions
        }
        self.config = config or config_of()
        self.refused: set[tuple[str, tuple[int, ...]]] = set()
        self.loads: list[tuple[str, tuple[int, ...]]] = []
        self.error = error
        self.asked: Callable[[], None] = lambda: None  # called by each probe
        self.loaded: Callable[[], None] = lambda: None  # called by each load that succeeds
        self._answered = answered or itertools.repeat(4)
        self._tokens = tokens or itertools.repeat(0)
        self._due = due

    def call(self, path: str, body: Any = None, timeout_s: float = 0) -> Any:
        if path.endswith("/config"):
            return dict(self.config)
        self.asked()
        if self.error is not None:
            raise self.error
        return None

    def metrics(self) -> str:
        due = "fusewire_compute_due_timestamp_seconds"
        return (
            f'fusewire_requests_total{{model="m",outcome="ok",task="generate"}} '
            f"{next(self._answered)}\n"
            f'fusewire_requests_total{{model="m",outcome="rejected"}} {time.time()}\n'
            f'fusewire_requests_total{{model="n",outcome="ok"}} {time.time()}\n'
            f'fusewire_tokens_total{{model="m",task="generate"}} {next(self._tokens)}\n'
            f'{due}{{instance="m_0_0",model="m"}} {self._due}\n'
            f'{due}{{instance="n_0_0",model="n"}} {time.time()}\n'
        )

    def live(self) -> bool:
        return True

    def index(self, timeout_s: float = 0) -> list[dict[str, str]]:
        rows = []
        for (name, version), state in self.states.items():
            row = {"name": name, "version": str(version), "state": state.split()[0]}
            rows.append(row | ({"reason": state.split()[1]} if " " in state else {}))
        return rows

    def load(self, model: str, config: dict[str, Any]) -> None:
        versions = tuple(config["version_policy"]["specific"]["versions"])
        self.loads.append((model, versions))
        if (model, versions) in self.refused:
            raise EndpointError(400, f"load failed for model '{model}': truncated")
        self.states.update({(model, version): "READY" for version in versions})
        self.loaded()


def watched(
    triton: Any,
    process: Any = None,
    *,
    start: Callable[[Sequence[str]], None] = lambda models: None,
    lost: Callable[[str, float], None] = lambda model, began_before: None,
    repositories: Sequence[Path] = (),
    **settings: Any,
) -> Watched:
    """A server of stand-ins."""
    return Watched(
        process or StandInProcess(),
        triton,
        Pins(triton),
        repositories,
        ServerSettings(**settings),
        start,
        lost,
    )


def finished(step: Callable[[], None]) -> None:
    """Does a step, and waits for the end of the threads that it began."""
    before = set(threading.enumerate())
    step()
    for thread in set(threading.enumerate()) - before:
        thread.join()


def sleeping_child() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

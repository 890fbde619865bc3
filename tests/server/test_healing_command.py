"""`fusewire serve` outlives what happens to it, and a signal ends it whatever it is doing."""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.asking import PATIENCE_S, until
from tests.server.test_serve_command import Serving, fusewire

# What ending may take beside the exit timeout, which nothing in flight makes use of here.
ENDED_S = 30.0


class Watched(Serving):
    """A command whose events are read as they come."""

    def __init__(self, temporary: Path, *arguments: object) -> None:
        super().__init__(temporary, *arguments)
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))

    def event(self) -> dict[str, Any]:
        return self._events.get(timeout=PATIENCE_S)

    def report(self, words: str) -> str:
        """The next report of the watchdog that has these words."""
        while words not in (text := str(self.event()["text"])):
            pass
        return text

    def server(self) -> int:
        (pid,) = self.pids("tritonserver\0")
        return pid

    def stub(self) -> int:
        (pid,) = self.pids("triton_python_backend_stub")
        return pid

    def ended(self) -> None:
        """A signal ends it in time, without an error and without traces."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - began < ENDED_S
        assert self.traces() == []


@pytest.fixture
def serving(tiny: Callable[..., Path], tmp_path: Path) -> Iterator[Watched]:
    server = Watched(tmp_path / "tmp", tiny("bert", "classify"))
    with server.process:
        yield server
        server.process.terminate()


def test_a_lack_of_file_descriptors_ends_nothing(serving: Watched) -> None:
    ready = serving.event()
    pid = serving.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    old, stub = serving.server(), serving.stub()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))  # nothing more can be opened
    assert "Too many open files" in serving.report("the watchdog met an error")
    os.kill(stub, signal.SIGKILL)
    os.kill(old, signal.SIGKILL)
    for _ in range(2):
        assert "Too many open files" in serving.report("the server did not start")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    serving.report("the server is ready again")
    serving.report("serving again")  # the model: later starts load them when they are up
    assert serving.server() != old
    assert "LABEL" in fusewire("ask", "classify", "a text", "--address", ready["grpc"])
    serving.ended()


def test_a_signal_ends_a_start(serving: Watched) -> None:
    until(lambda: serving.pids("tritonserver\0"))
    serving.ended()


@pytest.mark.parametrize("deaths", [1, 3])
def test_a_signal_ends_a_restart(serving: Watched, deaths: int) -> None:
    """While it waits, too: from the second on starts are seconds apart."""
    serving.event()
    for death in range(deaths):
        os.kill(serving.server(), signal.SIGKILL)
        serving.report("starting it again")
        if death + 1 < deaths:
            serving.report("ready again")
    serving.ended()


def test_a_signal_ends_a_reload(serving: Watched) -> None:
    serving.event()
    os.kill(serving.stub(), signal.SIGKILL)
    serving.report("loading the model again")
    serving.ended()

"""A server that ends while it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fusewire.serving.config import ServerSettings
from fusewire.serving.supervisor import processes, unheard
from fusewire.serving.supervisor.processes import Stub
from fusewire.serving.supervisor.starter import ServerFailed, Starter


class Process:
    """Of each start how it ends, None: it serves."""

    def __init__(self, *ends: int | None) -> None:
        self._ends = iter(ends)
        self._end: int | None = None
        self.starts = 0
        self.pid = os.getpid()  # whose children are the test's
        self.loaded: set[str] = set()
        self.failed: set[str] = set()
        self.last_lines = ["last words"]

    def start(self, repositories: Sequence[Path], models: Sequence[str], log: Any) -> None:
        self.starts += 1
        self._end = next(self._ends)

    def running(self) -> bool:
        return self._end is None

    def exit_code(self) -> int | None:
        return self._end

    def live(self) -> bool:
        """In place of its control."""
        return self.running()


def starter(process: Any) -> Starter:
    return Starter(process, process, [], ServerSettings(), lambda level, line: None)


@pytest.mark.parametrize("crash", [signal.SIGABRT, signal.SIGSEGV])
def test_one_that_crashes_is_started_once_more(
    caplog: pytest.LogCaptureFixture, crash: signal.Signals
) -> None:
    process = Process(-crash, None)
    starter(process).start(["m"])
    assert process.starts == 2
    assert "last words\nit is started once more" in caplog.text


@pytest.mark.parametrize(
    ("ends", "starts"),
    [((-signal.SIGABRT, -signal.SIGSEGV), 2), ((1,), 1), ((-signal.SIGKILL,), 1)],
    ids=["crashes again", "exits", "is killed"],
)
def test_another_end_is_an_error_with_its_last_words(ends: tuple[int, ...], starts: int) -> None:
    process = Process(*ends)
    of = starter(process)
    how = f"ended by {signal.Signals(-ends[-1]).name}" if ends[-1] < 0 else "exited"
    with pytest.raises(ServerFailed, match=rf"(?s)tritonserver {how} while starting; .*last words"):
        of.start(["m"])
    assert (process.starts, of.serving) == (starts, False)


def test_a_crash_with_several_models_is_an_error_that_says_how_to_find_the_one() -> None:
    process = Process(-signal.SIGSEGV, -signal.SIGSEGV)
    with pytest.raises(ServerFailed, match=r"by SIGSEGV while starting, .*: serve each alone"):
        starter(process).start(["m", "n"])


class Waiting(Process):
    """One that is not ready, while it waits for its children, until `ready`."""

    def __init__(self) -> None:
        super().__init__(None)
        self.ready = False

    def live(self) -> bool:
        return self.ready


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A child of the test, for starters that are impatient; those of other tests are not seen."""
    monkeypatch.setattr(unheard, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(unheard, "_LOOK_S", 0.02)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    every = processes.children
    monkeypatch.setattr(
        processes,
        "children",
        lambda parent: {pid: state for pid, state in every(parent).items() if pid == child.pid},
    )
    yield child
    child.kill()
    child.wait()


def kill(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie


def test_a_process_that_died_before_it_said_why_ends_the_wait(
    child: subprocess.Popen[bytes],
) -> None:
    kill(child)
    process = Waiting()
    process.loaded = {"n"}
    with pytest.raises(ServerFailed, match=r"(?s)^m: a model's process died .*last words"):
        starter(process).start(["m", "n"])


def test_one_of_a_model_that_tritonserver_has_given_up_keeps_no_other_waiting(
    child: subprocess.Popen[bytes],
) -> None:
    kill(child)
    process = Waiting()
    process.failed = {"m"}
    threading.Timer(0.6, setattr, (process, "ready", True)).start()
    starter(process).start(["m", "n"])


def test_one_of_a_loaded_model_keeps_no_other_waiting(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog sees to it when the server has started."""
    seen = threading.Event()

    def stub(pid: int) -> Stub:
        seen.set()
        return Stub(pid, "m", "1", "m_0_0")

    monkeypatch.setattr(processes, "stub", stub)
    process = Waiting()
    process.loaded = {"m"}

    def die() -> None:
        assert seen.wait(60)
        kill(child)
        threading.Timer(0.6, setattr, (process, "ready", True)).start()

    threading.Thread(target=die).start()
    starter(process).start(["m", "n"])
    assert processes.children(os.getpid())[child.pid] == "died"

"""What /proc says about the server's stub processes (one per model instance)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PROC = Path("/proc")
_STUB = "triton_python_backend_stub"
# proc(5)'s fields 5, 14, 15, 22 and 52, counted from the state.
_GROUP, _USER, _SYSTEM, _STARTED, _EXIT_CODE = 2, 11, 12, 19, 49
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stub:
    """A stub process and the model whose instance it runs."""

    pid: int
    model: str
    version: str
    instance: str
    region: str = ""  # of shared memory between it and the server


State = Literal["running", "ended", "died"]


def children(parent: int) -> dict[int, State]:
    """The children of a process that it has not reaped. "ended", with exit code 0, as an unloaded
    stub does, and "died" are zombies. One that is reaped while it is looked at is left out."""
    found: dict[int, State] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = _status(entry)
            if int(fields[1]) == parent:
                found[int(entry.name)] = _state(fields)
    return found


def _state(fields: list[str]) -> State:
    if fields[0] not in "ZX":
        return "running"
    return "ended" if fields[_EXIT_CODE] == "0" else "died"


@dataclass(frozen=True)
class Times:
    """When a process began, on the clock of time.monotonic, and the processor time that it took."""

    started: float
    used_s: float


def times(pid: int) -> Times | None:
    """The times of a process; None when it has ended."""
    try:
        fields = _status(_PROC / str(pid))
    except (OSError, IndexError):
        return None
    used = int(fields[_USER]) + int(fields[_SYSTEM])
    return Times(int(fields[_STARTED]) / _TICKS, used / _TICKS)


def stub(pid: int) -> Stub | None:
    """The stub of a process id, None when it is something else or has ended."""
    try:
        return stub_of(pid, (_PROC / str(pid) / "cmdline").read_bytes())
    except OSError:
        return None


def stub_of(pid: int, command_line: bytes) -> Stub | None:
    """The stub that a command line starts, None when it starts something else.

    Triton's stub is called with: model.py of the version folder, shared-memory name, …, the
    instance's name and the backend folder.
    """
    words = [word.decode(errors="replace") for word in command_line.split(b"\0") if word]
    if len(words) < 4 or Path(words[0]).name != _STUB:
        return None
    version = Path(words[1]).parent
    return Stub(pid, version.parent.name, version.name, words[-2], words[2])


def kill(pid: int, sign: signal.Signals = signal.SIGKILL) -> None:
    """Sends a signal to a process that may have ended already."""
    if pid > 1:  # 0 and below mean groups, -1 everything
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)


def kill_group(leader: int) -> None:
    """Ends a process and all that it started, if it leads a group, or what is left of them."""
    if leader > 1:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)


def wait_for_group(leader: int, timeout_s: float) -> bool:
    """Waits until no process of a group lives; whether that came in time."""
    deadline = time.monotonic() + timeout_s
    while _lives(leader):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _lives(group: int) -> bool:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = _status(entry)
                if int(fields[_GROUP]) == group and fields[0] not in "ZX":
                    return True
    return False


def _status(entry: Path) -> list[str]:
    # "pid (name) state parent …"; the name may hold anything, so cut at its last bracket.
    return (entry / "stat").read_text().rsplit(")", 1)[1].split()

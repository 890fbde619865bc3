"""Reads the server's stub processes (one per model instance) from /proc."""

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
# Fields 5, 14, 15, 22 and 52 of proc(5), as indices after the name.
_GROUP, _USER, _SYSTEM, _STARTED, _EXIT_CODE = 2, 11, 12, 19, 49
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stub:
    """A stub process, and the model whose instance it runs."""

    pid: int
    model: str
    version: str
    instance: str
    region: str = ""  # shared memory region of it and the server


State = Literal["running", "ended", "died"]


def children(parent: int) -> dict[int, State]:
    """Returns the children of a process that it has not reaped. "ended" (exit code 0, as of an
    unloaded stub) and "died" are zombies. A child that is reaped during the call is left out."""
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
    """When a process began, on the clock of time.monotonic, and the CPU time that it has used."""

    started: float
    used_s: float


def times(pid: int) -> Times | None:
    """Returns the times of a process, or None when it has ended."""
    try:
        fields = _status(_PROC / str(pid))
    except (OSError, IndexError):
        return None
    used = int(fields[_USER]) + int(fields[_SYSTEM])
    return Times(int(fields[_STARTED]) / _TICKS, used / _TICKS)


def stub(pid: int) -> Stub | None:
    """Returns the stub with a process id, or None when the process is not a stub or has ended."""
    try:
        return stub_of(pid, (_PROC / str(pid) / "cmdline").read_bytes())
    except OSError:
        return None


def stub_of(pid: int, command_line: bytes) -> Stub | None:
    """Returns the stub that a command line starts, or None when it starts something else.

    The arguments of Triton's stub are: model.py of the version folder, shared-memory name, …, the
    instance's name and the backend folder.
    """
    words = [word.decode(errors="replace") for word in command_line.split(b"\0") if word]
    if len(words) < 4 or Path(words[0]).name != _STUB:
        return None
    version = Path(words[1]).parent
    return Stub(pid, version.parent.name, version.name, words[-2], words[2])


def kill(pid: int, sign: signal.Signals = signal.SIGKILL) -> None:
    """Sends a signal to a process that may have ended already."""
    if pid > 1:  # 0 and below are groups, -1 is every process
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)


def kill_group(leader: int) -> None:
    """Ends a process group, or what is left of it, where the process is its leader."""
    if leader > 1:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)


def wait_for_group(leader: int, timeout_s: float) -> bool:
    """Waits until all processes of a group have ended. Returns whether they did in time."""
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
    # "pid (name) state parent …"; the name may have any characters, so split at the last bracket.
    return (entry / "stat").read_text().rsplit(")", 1)[1].split()

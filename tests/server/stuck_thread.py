"""One thread of another process that stops for ever, while the others go on: as one that waits for
a device that hangs, or for a lock that nobody gives back."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

_ATTACH = 16  # PTRACE_ATTACH: it is stopped, and runs no more
_WALL = 0x40000000  # __WALL: also threads that are no leaders of a process
_libc = ctypes.CDLL(None, use_errno=True)


def busiest_thread(pid: int, seconds: float = 0.5) -> int:
    """The thread that takes the most of the processor in so many seconds: the one that computes."""
    before = _processor_times(pid)
    time.sleep(seconds)
    now = _processor_times(pid)
    return max(now, key=lambda thread: now[thread] - before.get(thread, 0))


def stick(thread: int) -> None:
    """Returns when the thread has stopped. It is for ever: only its process can be killed."""
    stopped = threading.Event()
    errors: list[str] = []

    def trace() -> None:
        if _libc.ptrace(_ATTACH, thread, None, None):  # by this thread alone, which must live on
            errors.append(os.strerror(ctypes.get_errno()))
        else:
            os.waitpid(thread, _WALL)
        stopped.set()
        if not errors:
            os.waitpid(thread, _WALL)  # until it is killed, or nobody could reap it

    threading.Thread(target=trace, daemon=True).start()
    stopped.wait()
    if errors:
        raise OSError(f"ptrace of thread {thread}: {errors[0]}")


def _processor_times(pid: int) -> dict[int, int]:
    times = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        times[int(task.name)] = int(fields[11]) + int(fields[12])
    return times

"""Owns one service: starts it, reports its memory, and ends it at a limit, or with the run.

    python -m tests.attacks.keeper LIMIT_MIB NOFILE FOLDER COMMAND…

As a subreaper it stays the ancestor of all that the service starts, however their parents end. It
writes JSON lines to stdout; the service's output goes to `out` and `log` in FOLDER. When stdin
closes, it ends everything that is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.2


def descendants(pid: int) -> list[psutil.Process]:
    """All processes below `pid`, zombies included."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def regions(processes: list[psutil.Process]) -> set[str]:
    """The shared memory that processes have mapped."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            found |= {word for word in maps.split() if word.startswith("/dev/shm/fusewire")}
    return found


def used_bytes(processes: list[psutil.Process], regions: set[str]) -> int:
    """What the service holds: private and proportional pages, and each region once, mapped or
    not."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            for line in rollup.splitlines():
                if line.startswith(("Pss_Anon:", "Pss_File:")):
                    total += int(line.split()[1]) << 10
    for region in regions:
        with contextlib.suppress(OSError):
            total += os.stat(region).st_blocks * 512
    return total


def others(own: list[psutil.Process]) -> bool:
    """Whether another tritonserver runs on this machine."""
    mine = {process.pid for process in own}
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text() == "tritonserver\n" and int(path.parent.name) not in mine:
                return True
    return False


def _say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    limit_mib, nofile, folder, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if int(nofile):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(nofile), int(nofile)))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's would be the service's too
    with open(f"{folder}/out", "wb") as out, open(f"{folder}/log", "wb") as log:
        service = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, os.getpid(), -5)  # a limit that is noticed in time
    _say(event="started", pid=service.pid)
    known: set[str] = set()
    alone = True
    while not select.select([sys.stdin], [], [], _TICK_S)[0]:
        below = descendants(os.getpid())
        for region in regions(below) - known:
            known.add(region)
            _say(event="region", path=region)
        if alone and others(below):
            alone = False
            _say(event="others")
        used = used_bytes(below, known)
        _say(event="memory", bytes=used)
        if used > int(limit_mib) << 20:
            _say(event="limit", bytes=used)
            _end_all()
        _reap(service.pid)
    _end_all()


def _reap(service: int) -> None:
    """Of the service itself the exit code; orphans that ended just go."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid == service:
                _say(event="ended", code=os.waitstatus_to_exitcode(status))


def _end_all() -> None:
    while living := [p for p in descendants(os.getpid()) if p.status() != psutil.STATUS_ZOMBIE]:
        for process in living:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


if __name__ == "__main__":
    main()

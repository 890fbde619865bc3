"""Surplus processes of a model, beyond its number of instances, which nothing else ends.

A process that was unloaded may finish what it began. But tritonserver keeps it as long as it keeps
one of its requests, and it keeps an HTTP stream whose end was dropped (control.py) for ever. Then
the process idles, with all its memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fusewire.serving.supervisor import processes
from fusewire.serving.supervisor.processes import Stub

# The share of a core above which a stub counts as busy. An idle stub uses a tenth of that, one that
# generates far more.
_BUSY_SHARE = 0.02


class Surplus:
    """Finds the surplus stubs of one server."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._seen: dict[int, tuple[float, float]] = {}  # process id -> idle since, CPU time then

    def idle(self, stubs: Sequence[Stub], wanted: int, loaded_at: float) -> list[int]:
        """Returns the process ids of the idle surplus stubs to end, out of all `stubs` of a model.
        `wanted`: the number of its instances. `loaded_at`: when it was loaded last."""
        times = {stub.pid: times for stub in stubs if (times := processes.times(stub.pid))}
        oldest_first = sorted(times, key=lambda pid: times[pid].started)
        if len(times) <= wanted or times[oldest_first[-1]].started > loaded_at:
            return []  # the newest may still be loading while the oldest serve
        now, due = time.monotonic(), []
        for pid in oldest_first[: len(times) - wanted]:
            since, used = self._seen.setdefault(pid, (now, times[pid].used_s))
            if times[pid].used_s - used > _BUSY_SHARE * (now - since) + 0.05:
                self._seen[pid] = (now, times[pid].used_s)
            elif now - since >= self._patience_s:
                due.append(pid)
                del self._seen[pid]
        return due

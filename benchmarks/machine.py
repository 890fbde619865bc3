"""Where a benchmark ran, and how much other processes disturbed it."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.encoder_report import cpu_name

# If other processes use a larger share than this, ratios are more noise than measurement.
DISTURBED = 0.1


def facts(*packages: str) -> dict[str, Any]:
    """Returns hardware, versions and time, the same keys in every row."""
    return {
        "cpu": cpu_name(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {package: version_of(package) for package in packages},
        "load_average": round(os.getloadavg()[0], 2),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # it runs from the source tree
        return "source"


def settle() -> None:
    """Excludes all existing objects from garbage collection: with torch a collection takes longer
    than what is measured. The server's processes do the same."""
    gc.collect()
    gc.freeze()


class Watch:
    """The share of this benchmark's cores that other processes have used since the watch was
    made."""

    def __init__(self, *others: int, cpus: Collection[int] = ()) -> None:
        """`others`: further processes of the benchmark besides this one. `cpus`: the CPUs that they
        all run on, if not those of this process."""
        self._others = others
        self._cpus = set(cpus) or os.sched_getaffinity(0)
        self._began, self._own = time.perf_counter(), self._own_s()
        self._busy = busy_s(self._cpus)

    def disturbed(self) -> float:
        """Returns the share of the cores' time that other processes used."""
        taken = (busy_s(self._cpus) - self._busy) - (self._own_s() - self._own)
        cores = (time.perf_counter() - self._began) * len(self._cpus)
        return round(max(0.0, taken / cores), 3)

    def _own_s(self) -> float:
        return time.process_time() + sum(cpu_s(pid) for pid in self._others)


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process, of all its threads; 0 for one that has ended, so that a
    watch counts its work as that of others."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_s(cpus: Collection[int] = ()) -> float:
    """Returns the seconds that these CPUs (default: those of this process) have been busy, for any
    process, since the system started."""
    names = {f"cpu{cpu}" for cpu in cpus or os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in names:
            user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")

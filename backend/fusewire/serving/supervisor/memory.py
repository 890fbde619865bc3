"""Memory of a process, and of the machine or container that it runs in (Linux)."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_RESIDENT = re.compile(r"^Rss(Anon|File|Shmem):\s+(\d+) kB$", re.MULTILINE)


class Resident(NamedTuple):
    """The resident memory of a process."""

    anonymous_bytes: int = 0
    file_bytes: int = 0
    shared_bytes: int = 0


def resident(pid: int) -> Resident:
    """Returns the resident memory of a process, zeros for one that has ended. Raises OSError where
    the files of /proc cannot be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return Resident()
    found = {kind: int(kib) << 10 for kind, kib in _RESIDENT.findall(status)}  # empty for a zombie
    return Resident(found.get("Anon", 0), found.get("File", 0), found.get("Shmem", 0))


def total_bytes(root: Path = Path("/")) -> int:
    """Returns the memory of the machine, or the limit of this process's cgroup if that is
    smaller."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_cgroup_limits(root)])


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Yields the limits of the cgroups of this process and of their parents, versions 1 and 2."""
    lines = []
    with contextlib.suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be that of the host; then its own cgroup is the mount itself.
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # no limit: "max"
                yield int((folder / name).read_text())
            if folder == mount:
                break

"""What a service has left behind after its end."""

from __future__ import annotations

import os
from pathlib import Path

from tests.attacks.service import Service


def left_by(service: Service, log_before_stop: int = 0) -> list[str]:
    """Processes, listening sockets, shared memory and temporary files, in words; and a crash that
    the log tells of after so many characters."""
    found = [f"process {process.pid}" for process in service.processes()]
    found += [f"port {port}" for port in listening(service.ports)]
    found += [str(region) for region in service.regions()]
    found += [str(path) for path in service.temporary.iterdir()]
    if service.alone:  # those of others would be taken for its own
        found += [str(path) for path in Path("/tmp").glob("python_env_*") if _ours(path, service)]
    if "Signal (11)" in service.log()[log_before_stop:]:
        found.append("Signal (11) in the log")
    return found


def listening(ports: dict[str, int]) -> list[int]:
    """Those of the ports on which someone listens."""
    taken = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":  # LISTEN
                taken.add(int(words[1].rpartition(":")[2], 16))
    return sorted(taken & set(ports.values()))


def _ours(path: Path, service: Service) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and status.st_mtime >= service.began

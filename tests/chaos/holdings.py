"""What a service holds: processes, shared memory, temporary files, open files and threads."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import psutil

from tests.attacks.service import Service

_SETTLED_S = 30.0  # for replaced processes to end and be reaped


@dataclass(frozen=True)
class Holdings:
    processes: int
    zombies: int
    regions: int  # of shared memory
    temporary_files: int
    supervisor_files: int
    supervisor_threads: int

    def more_than(self, before: Holdings) -> dict[str, str]:
        """What there is more of, as "before -> now"."""
        was, now = asdict(before), asdict(self)
        return {name: f"{was[name]} -> {now[name]}" for name in now if now[name] > was[name]}


def held(service: Service) -> Holdings:
    processes = service.processes()
    supervisor = service.supervisor()
    return Holdings(
        processes=len(processes),
        zombies=sum(_is_zombie(process) for process in processes),
        regions=len(service.regions()),
        temporary_files=sum(path.is_file() for path in service.temporary.rglob("*")),
        supervisor_files=supervisor.num_fds(),
        supervisor_threads=supervisor.num_threads(),
    )


def settled(service: Service, before: Holdings) -> Holdings:
    """What is held once that is no more than before, or the time for it is over."""
    deadline = time.monotonic() + _SETTLED_S
    while (now := held(service)).more_than(before) and time.monotonic() < deadline:
        time.sleep(0.2)
    return now


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

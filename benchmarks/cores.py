"""Separate cores for a server and for its clients, so that neither takes time from the other."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fusewire.serving.supervisor import processes

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


class Parts(NamedTuple):
    """The cores of a server and those of its clients; empty: not bound."""

    server: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        return (*self.server, *self.clients)


def parsed(text: str) -> tuple[int, ...]:
    """Parses a list of CPUs: "0,2-4" is 0, 2, 3, 4."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def checked(parts: Parts, usable: Collection[int]) -> Parts:
    """Returns the parts. Raises SystemExit where they are not usable or overlap."""
    if missing := sorted(set(parts.all) - set(usable)):
        raise SystemExit(f"cores: got {missing}, wanted some of {sorted(usable)}")
    if both := sorted(set(parts.server) & set(parts.clients)):
        raise SystemExit(f"cores: got {both} for the server and its clients, wanted them apart")
    if bool(parts.server) != bool(parts.clients):
        raise SystemExit("cores: got those of one side, wanted --server-cores and --driver-cores")
    return parts


def part(number: int, of: int, server: int, usable: Sequence[int]) -> Parts:
    """Returns the cores of benchmark `number` of `of` that run at the same time; the first `server`
    of them are the server's. Two hardware threads of one core are neighbours in `usable`, so that
    an even split never separates them."""
    each = len(usable) // of
    if not 0 <= number < of or each <= server:
        raise SystemExit(
            f"copy: got {number} of {of} on {len(usable)} cores, wanted more than {server} cores "
            "each, numbered from 0"
        )
    own = tuple(usable[number * each : (number + 1) * each])
    return Parts(own[:server], own[server:])


def usable() -> list[int]:
    """Returns the CPUs that this process may use; hardware threads of one core are neighbours."""
    return sorted(os.sched_getaffinity(0), key=lambda cpu: (min(siblings(cpu)), cpu))


def siblings(cpu: int) -> tuple[int, ...]:
    """Returns the CPUs of its physical core, including itself."""
    path = Path(_TOPOLOGY.format(cpu))
    return parsed(path.read_text().strip()) if path.exists() else (cpu,)


def shared(parts: Parts) -> list[int]:
    """Returns the clients' CPUs that share a physical core with the server, which slow it down."""
    near = {other for cpu in parts.server for other in siblings(cpu)}
    return sorted(near & set(parts.clients))


@contextmanager
def on(cpus: Collection[int]) -> Iterator[None]:
    """Binds this thread, and the processes and threads that it starts meanwhile, to these CPUs.
    Empty: it keeps its CPUs."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def check_runs_on(cpus: Collection[int], pids: Iterable[int]) -> None:
    """Raises SystemExit where a thread of these processes may run on other CPUs."""
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                may = os.sched_getaffinity(int(task.name))
            except ProcessLookupError:
                continue  # the thread has ended
            if elsewhere := may - set(cpus):
                raise SystemExit(f"{pid}: a thread may run on {sorted(elsewhere)}, not {cpus} only")


def tree(pid: int) -> list[int]:
    """Returns the process and all its running descendants."""
    running = [child for child, state in processes.children(pid).items() if state == "running"]
    return [pid, *(each for child in running for each in tree(child))]

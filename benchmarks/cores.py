"""Cores of a server's own, and others for those who ask it: neither takes time from the other."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fusewire.serving.supervisor import processes

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


class Parts(NamedTuple):
    """The cores of a server and those of its clients; empty: wherever the system puts them."""

    server: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        return (*self.server, *self.clients)


def parsed(text: str) -> tuple[int, ...]:
    """ "0,2-4" is 0, 2, 3, 4."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def checked(parts: Parts, usable: Collection[int]) -> Parts:
    """SystemExit where they cannot be had, or are not apart."""
    if missing := sorted(set(parts.all) - set(usable)):
        raise SystemExit(f"cores: got {missing}, wanted some of {sorted(usable)}")
    if both := sorted(set(parts.server) & set(parts.clients)):
        raise SystemExit(f"cores: got {both} for the server and its clients, wanted them apart")
    if bool(parts.server) != bool(parts.clients):
        raise SystemExit("cores: got those of one side, wanted --server-cores and --driver-cores")
    return parts


def part(number: int, of: int, server: int, usable: Sequence[int]) -> Parts:
    """Of `of` benchmarks at the same time this one's cores, `server` of them the server's. Two
    hardware threads of one core are neighbours here, so that an even cut never parts them."""
    each = len(usable) // of
    if not 0 <= number < of or each <= server:
        raise SystemExit(
            f"copy: got {number} of {of} on {len(usable)} cores, wanted more than {server} cores "
            "each, numbered from 0"
        )
    own = tuple(usable[number * each : (number + 1) * each])
    return Parts(own[:server], own[server:])


def usable() -> list[int]:
    """The CPUs that this process may use, hardware threads of one core beside each other."""
    return sorted(os.sched_getaffinity(0), key=lambda cpu: (min(siblings(cpu)), cpu))


def siblings(cpu: int) -> tuple[int, ...]:
    """The CPUs of its physical core, itself among them."""
    path = Path(_TOPOLOGY.format(cpu))
    return parsed(path.read_text().strip()) if path.exists() else (cpu,)


def shared(parts: Parts) -> list[int]:
    """CPUs of the clients on a physical core of the server: they slow it down."""
    near = {other for cpu in parts.server for other in siblings(cpu)}
    return sorted(near & set(parts.clients))


@contextmanager
def on(cpus: Collection[int]) -> Iterator[None]:
    """This thread, and what it starts meanwhile, runs there only. None: anywhere, as before."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def check_runs_on(cpus: Collection[int], pids: Iterable[int]) -> None:
    """SystemExit where a thread of these processes may run elsewhere."""
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                may = os.sched_getaffinity(int(task.name))
            except ProcessLookupError:
                continue  # it ended
            if elsewhere := may - set(cpus):
                raise SystemExit(f"{pid}: a thread may run on {sorted(elsewhere)}, not {cpus} only")


def tree(pid: int) -> list[int]:
    """The process and all that it started and that still runs."""
    running = [child for child, state in processes.children(pid).items() if state == "running"]
    return [pid, *(each for child in running for each in tree(child))]

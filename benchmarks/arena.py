"""A warm process for each system; only one of them works at a time.

Thread pools of different libraries in one process spin and compete for the cores. Here each system
has its own process and is loaded once; the others are suspended while one is timed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks import cores, machine, rivals, rivals_int8
from benchmarks.worker import Handler, Worker


def pin(threads: int) -> list[int]:
    """Binds this process and its later children to `threads` CPUs, on distinct cores if
    possible."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < threads:
        raise SystemExit(f"threads: got {threads}, wanted at most {len(usable)}, the cores here")
    first: list[int] = []
    second: list[int] = []
    seen: set[tuple[int, ...]] = set()
    for cpu in usable:
        core = cores.siblings(cpu)
        (second if core in seen else first).append(cpu)
        seen.add(core)
    chosen = (first + second)[:threads]
    os.sched_setaffinity(0, chosen)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    return chosen


@dataclass(frozen=True)
class Turn:
    """`seconds` of each run; `disturbed`: the share of the cores' time that other processes used
    meanwhile."""

    seconds: list[float]
    disturbed: float


class Timed(Protocol):
    """A system whose runs are timed."""

    name: str

    def time(self, given: Any, /, seconds: float) -> Turn: ...


class System(Worker):
    """One system in its own process."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        super().__init__(name, _answering, name, folder, threads)
        try:
            self.version: str = self.ask(("version", [], 0.0))
        except RuntimeError:
            self.close()
            raise

    def run(self, sequences: list[np.ndarray]) -> np.ndarray:
        """Returns the last hidden state, [tokens, hidden]."""
        return self.ask(("run", sequences, 0.0))

    def first_two(self, sequences: list[np.ndarray]) -> tuple[float, float]:
        """Returns the seconds of two runs, without a warm-up."""
        return self.ask(("first two", sequences, 0.0))

    def time(self, sequences: list[np.ndarray], seconds: float) -> Turn:
        """Runs for about `seconds`, at least once, after one warm-up."""
        return timed(lambda: self.ask(("time", sequences, seconds)))


def timed(ask: Callable[[], tuple[list[float], float]]) -> Turn:
    """Times a system. `ask` runs it and returns the seconds of each run and the CPU seconds of its
    process."""
    begin, busy = time.perf_counter(), machine.busy_s()
    runs, own = ask()
    available = (time.perf_counter() - begin) * len(os.sched_getaffinity(0))
    return Turn(runs, max(0.0, (machine.busy_s() - busy - own) / available))


def _answering(name: str, folder: Path, threads: int) -> Handler:
    run = (rivals.SYSTEMS | rivals_int8.SYSTEMS)[name](folder, threads)

    def answer(question: tuple[str, list[np.ndarray], float]) -> Any:
        command, sequences, seconds = question
        if command == "version":
            return _version(name)
        if command == "run":
            return rivals.packed(run(sequences), sequences)
        if command == "first two":
            return once(run, sequences), once(run, sequences)
        begin = time.process_time()  # CPU time of all threads
        runs = times(run, sequences, seconds)
        return runs, time.process_time() - begin

    return answer


def times(run: Callable[[Any], Any], given: Any, seconds: float) -> list[float]:
    """Returns the seconds of each run, for about `seconds` and at least one, after one warm-up."""
    run(given)
    found: list[float] = []
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        found.append(once(run, given))
    return found


def once(run: Callable[[Any], Any], given: Any) -> float:
    """Returns the seconds of one run."""
    begin = time.perf_counter()
    run(given)
    return time.perf_counter() - begin


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    package = "torch" if name == "torch-packed" else name.partition(" ")[0]
    try:
        return version(package)
    except PackageNotFoundError:  # fusewire runs from its source tree
        return "source"

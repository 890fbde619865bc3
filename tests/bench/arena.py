"""A warm process for each system, only one of them working at a time.

Thread pools of different libraries in one process spin and fight for the cores. Here each system
owns a process, loaded once; the others sleep in a pipe read while one is timed.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np

from tests.bench import machine, rivals

# Pools that spin after their work would slow the next system; libraries stop within this time.
SETTLE_S = 0.1


def pin(threads: int) -> list[int]:
    """Binds this process, and the children to come, to `threads` cores, distinct ones if it can."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < threads:
        raise SystemExit(f"threads: got {threads}, wanted at most {len(usable)}, the cores here")
    first: list[int] = []
    second: list[int] = []
    seen: set[str | int] = set()
    for cpu in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = siblings.read_text() if siblings.exists() else str(cpu)
        (second if core in seen else first).append(cpu)
        seen.add(core)
    chosen = (first + second)[:threads]
    os.sched_setaffinity(0, chosen)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    return chosen


@dataclass(frozen=True)
class Turn:
    """`seconds` of each run; `disturbed`: share of the cores' time that others took meanwhile."""

    seconds: list[float]
    disturbed: float


class System:
    """One system in its process."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, name, folder, threads), daemon=True
        )
        self._process.start()
        theirs.close()
        self.version: str = self._answer()

    def run(self, sequences: list[np.ndarray]) -> np.ndarray:
        """[tokens, hidden]."""
        self._pipe.send(("run", sequences, 0.0))
        return self._answer()

    def time(self, sequences: list[np.ndarray], seconds: float) -> Turn:
        """Runs for about `seconds`, at least once, after one warm-up."""
        time.sleep(SETTLE_S)
        begin, busy = time.perf_counter(), machine.busy_s()
        self._pipe.send(("time", sequences, seconds))
        runs, own = self._answer()
        cores = (time.perf_counter() - begin) * len(os.sched_getaffinity(0))
        return Turn(runs, max(0.0, (machine.busy_s() - busy - own) / cores))

    def _answer(self) -> Any:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self.name}: its process died") from None
        if kind == "error":
            raise RuntimeError(f"{self.name}: {value}")
        return value

    def close(self) -> None:
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _serve(pipe: Connection, name: str, folder: Path, threads: int) -> None:
    try:
        run = rivals.SYSTEMS[name](folder, threads)
        pipe.send(("version", _version(name)))
    except Exception:
        pipe.send(("error", traceback.format_exc(limit=3)))
        return
    while True:
        try:
            command, sequences, seconds = pipe.recv()
        except EOFError:
            return
        try:
            if command == "run":
                pipe.send(("output", rivals.packed(run(sequences), sequences)))
            else:
                begin = time.process_time()  # of all threads
                times = _times(run, sequences, seconds)
                pipe.send(("times", (times, time.process_time() - begin)))
        except Exception:
            pipe.send(("error", traceback.format_exc(limit=3)))


def _times(run: rivals.Run, sequences: list[np.ndarray], seconds: float) -> list[float]:
    run(sequences)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        run(sequences)
        times.append(time.perf_counter() - begin)
    return times


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    package = "torch" if name == "torch-packed" else name
    try:
        return version(package)
    except PackageNotFoundError:  # fusewire run from its source tree
        return "source"

"""The overload benchmark's command line."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks import cores, overload_plan, records
from benchmarks.cores import Parts
from benchmarks.overload_plan import Cell, Pace
from benchmarks.overload_systems import LOADS, SYSTEMS

SHARES = (3.0, 0.7, 1.0, 2.0, 1.5)
_FIRST_PORT = 18000  # the first copy's port: below the kernel's ephemeral ports
_PORTS_EACH = 10


@dataclass(frozen=True)
class Options:
    cells: list[Cell]  # in the order in which they run
    asked: int  # selected cells, before those that do not fit were left out
    pace: Pace
    limit_s: float
    parts: Parts
    drivers: int  # client processes
    first_port: int
    threads: int
    random_weights: bool
    deadline_s: float | None  # of all loads; None: each load's own
    count: int
    max_batch_size: int
    seed: int
    out: Path


def options(about: str, arguments: list[str] | None = None) -> Options:
    parser = _parser(about)
    given = parser.parse_args(arguments)
    if given.copy is not None and (given.server_cores or given.driver_cores):
        parser.error("--copy chooses the cores: leave out --server-cores and --driver-cores")
    parts, first_port = Parts(given.server_cores, given.driver_cores), 0
    if given.copy is not None:
        number, of = given.copy
        parts = cores.part(number, of, 2, cores.usable())
        first_port = _FIRST_PORT + _PORTS_EACH * number
    cores.checked(parts, cores.usable())
    pace = Pace(given.seconds, given.capacity_seconds, given.turns)
    asked = overload_plan.cells(given.systems, given.loads, given.protocols, given.shares)
    limit_s = 60 * given.minutes
    if not asked:
        parser.error("none of these systems takes these loads over these protocols")
    chosen = overload_plan.that_fit(asked, pace, limit_s)
    if not chosen:
        raise SystemExit(f"minutes: got {given.minutes:g}, wanted enough for one cell")
    return Options(
        cells=overload_plan.in_groups(chosen),
        asked=len(asked),
        pace=pace,
        limit_s=limit_s,
        parts=parts,
        drivers=given.drivers,
        first_port=first_port,
        threads=given.threads or len(parts.server) or 2,
        random_weights=given.random_weights,
        deadline_s=given.deadline_s,
        count=given.count,
        max_batch_size=given.max_batch_size,
        seed=given.seed,
        out=given.out,
    )


def _copy(text: str) -> tuple[int, int]:
    number, of = text.split("/")
    return int(number), int(of)


def _parser(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=["48 words"])
    parser.add_argument("--protocols", nargs="+", choices=["grpc", "http"], default=["grpc"])
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the capacity")
    parser.add_argument("--turns", type=int, default=3, help="at each share")
    parser.add_argument("--seconds", type=float, default=10.0, help="of arrivals in each turn")
    parser.add_argument(
        "--capacity-seconds", type=float, default=5.0, help="of the closed loop around each turn"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="leave out what does not fit"
    )
    parser.add_argument("--server-cores", type=cores.parsed, default=(), help="such as 0,1")
    parser.add_argument("--copy", type=_copy, help="0/3: the first of three, on its cores")
    parser.add_argument("--driver-cores", type=cores.parsed, default=(), help="such as 2-7")
    parser.add_argument("--drivers", type=int, default=1, help="client processes")
    parser.add_argument("--random-weights", action="store_true", help="MiniLM's shape alone")
    parser.add_argument("--deadline-s", type=float, help="default: 1, of generated answers 10")
    parser.add_argument("--count", type=int, default=64, help="requests of rivals that count")
    parser.add_argument("--max-batch-size", type=int, default=128, help="of Triton")
    parser.add_argument("--threads", type=int, help="default: the server's cores, or 2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=records.RESULTS / "overload.jsonl")
    return parser

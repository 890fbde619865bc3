"""What a server does with more requests than it can answer: `python -m benchmarks.overload`.

MiniLM-L6 on the CPU behind the real embedded Triton. Its capacity is measured in a closed loop;
then requests arrive as a Poisson process (open loop: nobody waits for an answer before sending the
next) at a share of it, each with a deadline. Goodput is what was answered within the deadline.

Systems: `fusewire` (admission by predicted cost; clients tell their deadline), `fifo` (every
request is taken, in order of arrival), `triton` (Triton's queue policy: REJECT beyond
`max_queue_size`), `count` (at most so many requests under way, as gateways limit them).
Loads: texts of 48 words; `lengths`, 5 to 500 tokens; `bursts`; `tenants`, of which one sends ten
times what each of the others does; `retries`, clients that try again until their deadline.

`--server-cores 0,1 --driver-cores 2-7` gives server and clients cores of their own; `--copy 0/3` is
the first of three such benchmarks at the same time, each on its third of the cores. `--minutes 8`
leaves out what does not fit; each list is given in the order of importance.

Writes bench-results/overload.jsonl, one JSON object a row.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from fusewire.serving.supervisor.server import Server

from benchmarks import cores, machine, overload_arrivals, overload_plan, random_bert, records
from benchmarks.encoder import minilm_folder
from benchmarks.machine import DISTURBED
from benchmarks.overload_arrivals import statistics
from benchmarks.overload_client import Load
from benchmarks.overload_drivers import Drivers
from benchmarks.overload_options import Options, options
from benchmarks.overload_plan import Cell
from benchmarks.overload_report import LATE_MS, late, line, table
from benchmarks.overload_systems import LOADS, MODEL, SYSTEMS, Limits, serving
from benchmarks.served_requests import Texts

BENCHMARK = "overload"
PACKAGES = ("fusewire", "nvidia-pytriton", "tritonclient", "aiohttp", "grpcio")
TEXTS = 256


class Bench:
    """Servers and clients of one run; each row is in the file before the next is measured."""

    def __init__(self, given: Options, folder: Path) -> None:
        self.given = given
        self.folder = folder
        self.ends = time.monotonic() + given.limit_s
        words = Texts(folder)
        self.texts = {
            name: words.some(TEXTS, kind.least, kind.most)[0] for name, kind in LOADS.items()
        }
        self.rows: records.Rows = []
        self.left_out: list[Cell] = []

    def run(self, chosen: list[Cell]) -> None:
        limits = Limits(*(getattr(self.given, name) for name in Limits._fields))
        for system, of_system in groupby(chosen, lambda cell: cell.system):
            with contextlib.ExitStack() as stack:
                with cores.on(self.given.parts.server):
                    server = stack.enter_context(serving(self.folder, SYSTEMS[system], limits))
                if self.given.parts.server:
                    cores.check_runs_on(self.given.parts.server, cores.tree(server.process.pid))
                for _, of_client in groupby(of_system, lambda cell: cell[:3]):
                    self._client(server, list(of_client))

    def _client(self, server: Server, chosen: list[Cell]) -> None:
        """The cells of one load over one protocol."""
        given, at = self.given, server.endpoint
        _, load, protocol, _ = chosen[0]
        under_way = LOADS[load].under_way
        port = at.grpc_port if protocol == "grpc" else at.http_port
        asks = protocol, f"{at.reachable}:{port}", MODEL, self.texts[load]
        with Drivers(given.drivers, load, *asks) as drivers:
            drivers.capacity(1.0, under_way)  # warm
            capacity = 0.0
            for cell in chosen:
                if time.monotonic() + overload_plan.cell_s(cell, given.pace) > self.ends:
                    self.left_out.append(cell)
                    continue
                if not (capacity and given.pace.once):
                    # Each time anew where others use the cores too: what they leave changes.
                    capacity = drivers.capacity(given.pace.capacity_s, under_way)
                self.rows.append(self._row(server, drivers, cell, capacity))
                records.append(given.out, self.rows[-1:])
                print(line(self.rows[-1]), flush=True)
                time.sleep(overload_plan.PAUSE_S)

    def _row(self, server: Server, drivers: Drivers, cell: Cell, capacity: float) -> records.Row:
        given, kind, system = self.given, LOADS[cell.load], SYSTEMS[cell.system]
        seconds = given.pace.seconds
        load = Load(
            kind.arrivals(cell.share * capacity, seconds, TEXTS, given.seed),
            given.deadline_s,
            system.tell_deadline,
            system.tell_deadline and kind.arrivals is overload_arrivals.tenants,
            given.count if system.count else None,
            kind.retries,
        )
        return {
            **machine.facts(*PACKAGES),
            "benchmark": BENCHMARK,
            "case": f"{cell.load}, {cell.protocol}, {cell.system}, {cell.share:g} x",
            **cell._asdict(),
            "model": given.model,
            "threads": given.threads,
            "server_cores": given.parts.server,
            "client_cores": given.parts.clients,
            "drivers": given.drivers,
            "seconds": seconds,
            "deadline_s": given.deadline_s,
            "capacity": round(capacity, 2),
            **measured(server, drivers, load, seconds, capacity, given.parts),
        }


def measured(
    server: Server,
    drivers: Drivers,
    load: Load,
    seconds: float,
    capacity: float,
    parts: cores.Parts,
) -> dict[str, Any]:
    """What one load made of a server."""
    pids = cores.tree(server.process.pid)
    before, began = resident_mib(pids), time.perf_counter()
    watch = machine.Watch(*drivers.pids, *pids, cpus=parts.all)
    worked = [sum(map(machine.cpu_s, side)) for side in (pids, drivers.pids)]
    outcome = drivers.offer(load)
    took = time.perf_counter() - began
    busy = [
        (sum(map(machine.cpu_s, side)) - so_far) / took
        for side, so_far in zip((pids, drivers.pids), worked, strict=True)
    ]
    return {
        **statistics(outcome.seen, seconds, capacity, load.deadline_s),
        "recovered_s": round(outcome.recovered_s, 2),
        "resident_mib_before": before,
        "resident_mib_after": resident_mib(cores.tree(server.process.pid)),
        "server_busy_cores": round(busy[0], 2),
        "clients_busy_cores": round(busy[1], 2),
        "disturbed": watch.disturbed(),
    }


def resident_mib(pids: list[int]) -> float:
    """Of tritonserver and its models' processes."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return round(sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


@contextlib.contextmanager
def model_folder(random: bool) -> Iterator[Path]:
    if not random:
        yield minilm_folder()
        return
    with tempfile.TemporaryDirectory() as folder:
        random_bert.write(Path(folder), "MiniLM-L6")
        yield Path(folder)


def main() -> None:
    given = options(__doc__)
    predicted = overload_plan.predicted_s(given.cells, given.pace)
    print(
        f"{len(given.cells)} of {given.asked} cells, about {predicted / 60:.1f} minutes", flush=True
    )
    if near := cores.shared(given.parts):
        print(f"cpus {near} of the clients share physical cores with the server")
    # What this process starts is where it is itself, the server aside.
    with cores.on(given.parts.clients), model_folder(given.random_weights) as folder:
        bench = Bench(given, folder)
        began = time.monotonic()
        bench.run(given.cells)
    print(table(bench.rows))
    print(f"took {(time.monotonic() - began) / 60:.1f} minutes; rows added to {given.out}")
    if bench.left_out:
        print(f"no time was left for {len(bench.left_out)}: {bench.left_out}")
    if behind := late(bench.rows):
        print(f"NOT QUOTABLE, clients sent more than {LATE_MS:g} ms late (p99): {behind}")
    worst = max(row["disturbed"] for row in bench.rows)
    if worst > DISTURBED:
        print(f"others took up to {worst:.0%} of the cores' time: run it again on a quiet machine")


if __name__ == "__main__":
    main()

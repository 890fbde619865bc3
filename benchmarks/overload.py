"""What a server does with more requests than it can answer: `python -m benchmarks.overload`.

MiniLM-L6 on the CPU on the real embedded Triton. Its capacity is measured in a closed loop, before
and after each of several turns, as a machine's speed changes. In a turn requests arrive as a
Poisson process (open loop: clients do not wait for an answer before sending the next) at a share of
the capacity, each with a deadline. Goodput counts the answers within the deadline.

Systems: `fusewire` (admission by predicted cost; clients send their deadline), `fifo` (every
request is accepted, in order of arrival), `triton` (Triton's queue policy: REJECT beyond
`max_queue_size`), `count` (a maximum number of concurrent requests, as in gateways). Loads: texts
of 48 words; `lengths`, 5 to 500 tokens; `bursts`; `tenants`, of which one sends ten times as many
as each of the others; `retries`, clients that retry until their deadline; `answers`, which a small
GPT generates, of mixed lengths, with a deadline for the whole answer; `tenants' answers`, of which
one tenant requests ten times as many. `possible` is the goodput of a server that knows every cost
and rejects requests for free.

`--server-cores 0,1 --driver-cores 2-7` gives server and clients separate cores; `--copy 0/3` is the
first of three such benchmarks at the same time, each on its third of the cores. `--minutes 8`
leaves out what does not fit; each list is given in the order of importance.

Writes bench-results/overload.jsonl, one JSON object per row.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from fusewire.serving.supervisor.server import Server

from benchmarks import cores, machine, overload_arrivals, overload_plan, records
from benchmarks.machine import DISTURBED
from benchmarks.overload_arrivals import Seen
from benchmarks.overload_client import Load
from benchmarks.overload_drivers import Drivers, requests_per_s
from benchmarks.overload_models import TEXTS, Given, encoded, generated, prompt_weight
from benchmarks.overload_options import Options, options
from benchmarks.overload_outcome import Turn, statistics
from benchmarks.overload_plan import Cell, client_of, server_of
from benchmarks.overload_report import LATE_MS, late, line, table
from benchmarks.overload_systems import LOADS, MODEL, SYSTEMS, Limits, serving
from benchmarks.overload_ways import Prompt

BENCHMARK = "overload"
PACKAGES = ("fusewire", "nvidia-pytriton", "tritonclient", "aiohttp", "grpcio")


class Bench:
    """Servers and clients of one run; each row is written to the file before the next is
    measured."""

    def __init__(self, given: Options) -> None:
        self.given = given
        self.ends = time.monotonic() + given.limit_s
        self.rows: records.Rows = []
        self.left_out: list[Cell] = []

    def run(self, chosen: list[Cell]) -> None:
        given = self.given
        with contextlib.ExitStack() as models:
            found: dict[bool, Given] = {}
            for generates in sorted({LOADS[cell.load].generates for cell in chosen}):
                make = generated if generates else encoded
                found[generates] = models.enter_context(make(given.random_weights))
            for (name, generates), of_server in groupby(chosen, server_of):
                limits = Limits(
                    given.threads,
                    given.max_batch_size,
                    given.count,
                    given.deadline_s or LOADS["48 words"].deadline_s,
                    given.first_port,
                )
                model, system = found[generates], SYSTEMS[name]
                with contextlib.ExitStack() as stack:
                    with cores.on(given.parts.server):
                        made = serving(model.folder, system, limits, generates)
                        server = stack.enter_context(made)
                    if given.parts.server:
                        cores.check_runs_on(given.parts.server, cores.tree(server.process.pid))
                    for _, of_client in groupby(of_server, client_of):
                        self._client(server, model, list(of_client))

    def _client(self, server: Server, model: Given, chosen: list[Cell]) -> None:
        """Measures the cells of one load over one protocol."""
        given, at = self.given, server.endpoint
        _, load, protocol, _ = chosen[0]
        kind = LOADS[load]
        loop = kind.under_way, kind.deadline_s
        port = at.grpc_port if protocol == "grpc" else at.http_port
        way = "stream" if kind.generates else protocol
        asks = way, f"{at.reachable}:{port}", MODEL
        with Drivers(given.drivers, load, *asks, model.texts[load]) as drivers:
            drivers.saturate(kind.deadline_s, *loop)  # warms up
            seconds = given.pace.capacity_s
            answered = drivers.saturate(seconds, *loop)
            weight = 0.0
            if kind.generates:
                answers_per_s = requests_per_s(answered, model.tokens[load], seconds)
                weight = self._prompt_weight(model.texts[load], answers_per_s, *asks)
            work = model.work(load, weight)
            before = requests_per_s(answered, work, seconds)
            for cell in chosen:
                if time.monotonic() + overload_plan.cell_s(cell, given.pace) > self.ends:
                    self.left_out.append(cell)
                    continue
                row = self._row(server, drivers, model, cell, work, before)
                if kind.generates:
                    row["prompt_weight"] = round(weight, 3)
                before = row["capacity"][-1]
                self.rows.append(row)
                records.append(given.out, self.rows[-1:])
                print(line(self.rows[-1]), flush=True)

    def _prompt_weight(
        self, prompts: list[Prompt], answers_per_s: float, way: str, address: str, model: str
    ) -> float:
        alone = [each._replace(new=1) for each in prompts]
        lengths = [len(each.ids) for each in prompts]
        seconds, under_way = self.given.pace.capacity_s, LOADS["answers"].under_way
        with Drivers(self.given.drivers, "prompts", way, address, model, alone) as drivers:
            answered = drivers.saturate(seconds, under_way, overload_plan.RAMP_S)
        prompts_per_s = requests_per_s(answered, lengths, seconds)
        return prompt_weight(prompts, answers_per_s, prompts_per_s)

    def _row(
        self,
        server: Server,
        drivers: Drivers,
        model: Given,
        cell: Cell,
        work: Sequence[float],
        before: float,
    ) -> records.Row:
        """Measures a cell and returns its row; `before` it, the server answered this many
        requests/s in a closed loop."""
        given, kind, pace = self.given, LOADS[cell.load], self.given.pace
        capacity, turns, abouts = [before], [], []
        deadline_s = given.deadline_s or kind.deadline_s
        for turn in range(pace.turns):
            load = self._load(cell, capacity[-1], deadline_s, given.seed + turn)
            seen, about = measured(server, drivers, load, given.parts)
            abouts.append(about)
            answered = drivers.saturate(pace.capacity_s, kind.under_way, kind.deadline_s)
            capacity.append(requests_per_s(answered, work, pace.capacity_s))
            # The speed of a core changes with the load of the others, so the capacity is the mean
            # of before and after.
            turns.append(Turn(seen, fmean(capacity[-2:])))
            time.sleep(overload_plan.PAUSE_S)
        return {
            **machine.facts(*PACKAGES),
            "benchmark": BENCHMARK,
            "case": f"{cell.load}, {cell.protocol}, {cell.system}, {cell.share:g} x",
            **cell._asdict(),
            "model": model.name,
            "threads": given.threads,
            "server_cores": given.parts.server,
            "client_cores": given.parts.clients,
            "drivers": given.drivers,
            "seconds": pace.seconds,
            "deadline_s": deadline_s,
            "capacity": [round(each, 2) for each in capacity],
            **of_turns(abouts),
            **statistics(turns, pace.seconds, deadline_s, work),
        }

    def _load(self, cell: Cell, capacity: float, deadline_s: float, seed: int) -> Load:
        given, kind, system = self.given, LOADS[cell.load], SYSTEMS[cell.system]
        return Load(
            kind.arrivals(cell.share * capacity, given.pace.seconds, TEXTS, seed),
            deadline_s,
            system.tell_deadline,
            system.tell_deadline and kind.arrivals is overload_arrivals.tenants,
            given.count if system.count else None,
            kind.retries,
        )


def measured(
    server: Server, drivers: Drivers, load: Load, parts: cores.Parts
) -> tuple[list[Seen], dict[str, Any]]:
    """Offers one load to a server; returns what became of its requests, and the measurements of the
    server."""
    pids = cores.tree(server.process.pid)
    before, began = resident_mib(pids), time.perf_counter()
    # Where clients have their own cores, a lack of them shows in the clients' lag.
    own = pids if parts.server else [*pids, *drivers.pids]
    watch = machine.Watch(*own, cpus=parts.server)
    worked = [sum(map(machine.cpu_s, side)) for side in (pids, drivers.pids)]
    outcome = drivers.offer(load)
    took = time.perf_counter() - began
    busy = [
        (sum(map(machine.cpu_s, side)) - so_far) / took
        for side, so_far in zip((pids, drivers.pids), worked, strict=True)
    ]
    return outcome.seen, {
        "recovered_s": round(outcome.recovered_s, 2),
        "resident_mib_before": before,
        "resident_mib_after": resident_mib(cores.tree(server.process.pid)),
        "server_busy_cores": round(busy[0], 2),
        "clients_busy_cores": round(busy[1], 2),
        "disturbed": watch.disturbed(),
    }


def of_turns(abouts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combines several turns: the maximum of recovery time and disturbance, the mean of busy cores,
    and the memory before the first and after the last."""
    last, worst = abouts[-1], ("recovered_s", "disturbed")
    means = ("server_busy_cores", "clients_busy_cores")
    return {
        **abouts[0],
        "resident_mib_after": last["resident_mib_after"],
        **{key: max(about[key] for about in abouts) for key in worst},
        **{key: round(fmean(about[key] for about in abouts), 2) for key in means},
    }


def resident_mib(pids: list[int]) -> float:
    """Returns the resident memory of tritonserver and its models' processes."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return round(sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def main() -> None:
    given = options(__doc__)
    predicted = overload_plan.predicted_s(given.cells, given.pace)
    print(
        f"{len(given.cells)} of {given.asked} cells, about {predicted / 60:.1f} minutes", flush=True
    )
    if near := cores.shared(given.parts):
        print(f"cpus {near} of the clients share physical cores with the server")
    # The processes started here run on the clients' cores, except the server.
    with cores.on(given.parts.clients):
        bench = Bench(given)
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

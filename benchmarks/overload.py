"""What a server does with more requests than it can answer: `python -m benchmarks.overload`.

MiniLM-L6 on the CPU behind the real embedded Triton. Before each load its capacity is measured in
a closed loop; then requests arrive as a Poisson process (open loop: nobody waits for an answer
before sending the next) at a share of it, each with a deadline. Goodput is what was answered within
the deadline.

Systems: `fusewire` (admission by predicted cost; clients tell their deadline), `fifo` (every
request is taken, in order of arrival), `triton` (Triton's queue policy: REJECT beyond
`max_queue_size`), `count` (at most so many requests under way, as gateways limit them).
Loads: texts of 48 words; `lengths`, 5 to 500 tokens; `bursts`; `tenants`, of which one sends ten
times what each of the others does; `retries`, clients that try again until their deadline.

Writes bench-results/overload.jsonl, one JSON object a row.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

from fusewire.serving import model_config, repository
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.supervisor.server import Server

from benchmarks import machine, overload_arrivals, records
from benchmarks.encoder import minilm_folder
from benchmarks.machine import DISTURBED
from benchmarks.overload_arrivals import Arrival, statistics
from benchmarks.overload_client import Load, Saturation, clients
from benchmarks.served_requests import Texts
from benchmarks.worker import Worker

BENCHMARK = "overload"
MODEL = "minilm"
PACKAGES = ("fusewire", "nvidia-pytriton", "tritonclient", "aiohttp", "grpcio")
SHARES = (0.7, 1.0, 1.5, 2.0, 3.0)
UNDER_WAY = 64  # in the closed loop
TEXTS = 256
PAUSE_S = 2.0  # between loads


class Kind(NamedTuple):
    """A kind of load: tokens of its texts, when they come, and whether clients try again."""

    least: int
    most: int
    arrivals: Callable[[float, float, int, int], list[Arrival]]
    retries: bool = False


LOADS = {
    "48 words": Kind(50, 50, overload_arrivals.poisson),  # and two special tokens
    "lengths": Kind(5, 500, overload_arrivals.poisson),
    "bursts": Kind(50, 50, overload_arrivals.bursts),
    "tenants": Kind(50, 50, overload_arrivals.tenants),
    "retries": Kind(50, 50, overload_arrivals.poisson, retries=True),
}


class System(NamedTuple):
    """How a server is set up, and what its clients do."""

    settings: Mapping[str, object] = MappingProxyType({})
    tell_deadline: bool = False
    queue_policy: bool = False
    count: bool = False


_TAKES_ALL = MappingProxyType({"max_queue_ms": 86_400_000})  # a day
SYSTEMS = {
    "fifo": System(_TAKES_ALL),
    "triton": System(_TAKES_ALL, queue_policy=True),
    "count": System(_TAKES_ALL, count=True),
    "fusewire": System(tell_deadline=True),
}


@contextmanager
def serving(system: System, options: argparse.Namespace, most: int) -> Iterator[Server]:
    """A server of the model. `most`: requests that Triton's queue may hold, where it limits it."""
    with tempfile.TemporaryDirectory() as root:
        entry = repository.import_folder(
            minilm_folder(),
            root,
            name=MODEL,
            settings={"threads": options.threads, "max_length": 512, **system.settings},
            deployment=Deployment(device="cpu", max_batch_size=options.max_batch_size),
            link=True,
        )
        if system.queue_policy:
            config = model_config.read(entry / repository.CONFIG)
            policy = config.dynamic_batching.default_queue_policy
            policy.max_queue_size = most
            policy.timeout_action = policy.REJECT
            policy.default_timeout_microseconds = int(options.deadline_s * 1e6)
            model_config.write(config, entry / repository.CONFIG)
        ports = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, log_level="error")
        with Server([Path(root)], ports, report=print) as server:
            yield server


def resident_mib(server: Server) -> float:
    """Of tritonserver and its models' processes."""
    pids = [server.process.pid, *(stub.pid for stub in server.process.stubs())]
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return round(sum(pages) * 4096 / 2**20, 1)


def measured(
    server: Server, client: Worker, load: Load, seconds: float, capacity: float
) -> dict[str, Any]:
    """What one load made of a server."""
    before = resident_mib(server)
    watch = machine.Watch(
        server.process.pid, client.pid, *(stub.pid for stub in server.process.stubs())
    )
    outcome = client.ask(load)
    disturbed = watch.disturbed()
    return {
        **statistics(outcome.seen, seconds, capacity, load.deadline_s),
        "recovered_s": round(outcome.recovered_s, 2),
        "resident_mib_before": before,
        "resident_mib_after": resident_mib(server),
        "disturbed": disturbed,
    }


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['case']} of {row['capacity']}/s: goodput {row['goodput_per_s']:.1f}/s = "
        f"{row['goodput_of_capacity']:.1%} of capacity ({row['goodput_of_offered']:.1%} of "
        f"offered); accepted p50 {row.get('accepted_ms_p50', '-')} p99 "
        f"{row.get('accepted_ms_p99', '-')} ms, refused {row['refused_requests']} p99 "
        f"{row.get('refused_ms_p99', '-')} ms, expired {row['expired_requests']}, failed "
        f"{row['failed_requests']}; recovered "
        f"{row['recovered_s']} s; Jain {row['jain']}; {row['resident_mib_before']} -> "
        f"{row['resident_mib_after']} MiB; client lag p99 {row['client_lag_ms_p99']} ms; others "
        f"took {row['disturbed']:.0%}"
    )


def table(rows: records.Rows) -> str:
    """Goodput by load and system."""
    shares = sorted({row["share"] for row in rows})
    kinds = dict.fromkeys((row["load"], row["protocol"], row["system"]) for row in rows)
    lines = ["| load | protocol | system | " + " | ".join(f"{s:g} x" for s in shares) + " |"]
    lines.append("|" + "---|" * (3 + len(shares)))
    for kind in kinds:
        cells = []
        for share in shares:
            of = [r for r in rows if (r["load"], r["protocol"], r["system"]) == kind]
            found = [r["goodput_of_capacity"] for r in of if r["share"] == share]
            cells.append(f"{median(found):.1%}" if found else "")
        lines.append("| " + " | ".join((*kind, *cells)) + " |")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> records.Rows:
    """Each row is in the file before the next is measured."""
    rows: records.Rows = []
    words = Texts(minilm_folder())
    for name in options.systems:
        system = SYSTEMS[name]
        with serving(system, options, options.count) as server:
            at = server.endpoint
            for kind_name in options.loads:
                kind = LOADS[kind_name]
                texts, _ = words.some(TEXTS, kind.least, kind.most)
                for protocol in options.protocols:
                    port = at.grpc_port if protocol == "grpc" else at.http_port
                    setup = clients, protocol, f"{at.reachable}:{port}", MODEL, texts
                    with Worker(f"{name} {protocol}", *setup) as client:
                        client.ask(Saturation(1.0, UNDER_WAY))  # warm
                        for share in options.shares:
                            rows.append(
                                _row(server, client, kind, share, system, options)
                                | {"system": name, "load": kind_name, "protocol": protocol}
                                | {"case": f"{kind_name}, {protocol}, {name}, {share:g} x"}
                            )
                            records.append(options.out, rows[-1:])
                            print(line(rows[-1]), flush=True)
                            time.sleep(PAUSE_S)
    return rows


def _row(
    server: Server,
    client: Worker,
    kind: Kind,
    share: float,
    system: System,
    options: argparse.Namespace,
) -> dict[str, Any]:
    # Each time anew: what the machine has left for it changes more than the server.
    capacity = client.ask(Saturation(options.capacity_seconds, UNDER_WAY))
    load = Load(
        kind.arrivals(share * capacity, options.seconds, TEXTS, options.seed),
        options.deadline_s,
        system.tell_deadline,
        system.tell_deadline and kind.arrivals is overload_arrivals.tenants,
        options.count if system.count else None,
        kind.retries,
    )
    return {
        **machine.facts(*PACKAGES),
        "benchmark": BENCHMARK,
        "model": "MiniLM-L6",
        "threads": options.threads,
        "seconds": options.seconds,
        "deadline_s": options.deadline_s,
        "share": share,
        "capacity": round(capacity, 2),
        **measured(server, client, load, options.seconds, capacity),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=["48 words"])
    parser.add_argument("--protocols", nargs="+", choices=["grpc", "http"], default=["grpc"])
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the capacity")
    parser.add_argument("--seconds", type=float, default=30.0, help="of arrivals at each share")
    parser.add_argument("--capacity-seconds", type=float, default=5.0, help="of the closed loop")
    parser.add_argument("--deadline-s", type=float, default=1.0, help="of each request")
    parser.add_argument("--count", type=int, default=64, help="requests of rivals that count")
    parser.add_argument("--max-batch-size", type=int, default=128, help="of Triton")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=records.RESULTS / f"{BENCHMARK}.jsonl")
    options = parser.parse_args()
    rows = run(options)
    print(table(rows))
    worst = max(row["disturbed"] for row in rows)
    if worst > DISTURBED:
        print(f"others took up to {worst:.0%} of the cores' time: run it again on a quiet machine")


if __name__ == "__main__":
    main()

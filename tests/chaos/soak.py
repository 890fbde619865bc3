"""Many small requests, and the memory that processes gain: `python -m tests.chaos.soak`.

`fusewire serve` with an encoder and a generator of random weights answers requests over gRPC as
fast as it can. After a warm-up no process may gain a MB per 10,000 of them: tritonserver, the
process of the model that is asked, and the supervisor.

Writes bench-results/soak.jsonl, one JSON object a row.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fusewire.serving.supervisor import memory

from benchmarks import machine, records
from tests.attacks.service import Service
from tests.chaos.clients import ENCODER, GENERATOR
from tests.chaos.flood import answered
from tests.chaos.models import sources

LIMIT_MB = 1.0  # per so many requests:
PER = 10_000
# In all, where few requests are asked: allocators keep that much of a server that grows no more.
_LEAST_MB = 1.0
_SAMPLES = 80
_WARM_UP = 0.25  # share of the requests
_WAYS = {"grpc encode": ENCODER, "grpc generate": GENERATOR}

Samples = Sequence[tuple[int, float]]  # requests answered, MB held


def slope(samples: Samples) -> float:
    """MB per request: the median of the slopes between all pairs of samples (Theil, 1950; Sen,
    1968), which a single step or peak does not move."""
    return median(
        (held - before) / (count - earlier)
        for (earlier, before), (count, held) in itertools.combinations(samples, 2)
    )


def soaked(
    service: Service, way: str, requests: int, under_way: int, tokens: int
) -> dict[str, Any]:
    """The row of one kind of requests; `failures` says in words what gained too much."""
    processes = {
        "server": service.tritonserver().pid,
        "instance": service.stub(_WAYS[way]).pid,
        "supervisor": service.pid,
    }
    samples: dict[str, list[tuple[int, float]]] = {name: [] for name in processes}
    began = time.monotonic()
    every = max(1, requests // _SAMPLES)
    for count in answered(service.addresses["grpc"], way, requests, under_way, every, tokens):
        for name, pid in processes.items():
            held = memory.resident(pid)
            samples[name].append((count, (held.anonymous_bytes + held.shared_bytes) / 1e6))
    seconds = time.monotonic() - began
    warm = {
        name: [each for each in of if each[0] >= _WARM_UP * requests]
        for name, of in samples.items()
    }
    slopes = {name: round(PER * slope(of), 3) for name, of in warm.items()}
    failures = [
        f"{name}: {each} MB per {PER} requests, wanted less than {LIMIT_MB:g}"
        for name, each in slopes.items()
        if each >= LIMIT_MB and each * (1 - _WARM_UP) * requests / PER >= _LEAST_MB
    ]
    now = service.tritonserver().pid, service.stub(_WAYS[way]).pid, service.pid
    if now != tuple(processes.values()):
        failures.append("a process was replaced meanwhile")
    return {
        "case": way,
        "requests": requests,
        "requests_per_s": round(requests / seconds, 1),
        "mb_per_10000_requests": slopes,
        "mb_warm": {name: round(of[0][1], 1) for name, of in warm.items()},
        "mb_at_the_end": {name: round(of[-1][1], 1) for name, of in warm.items()},
        "failures": failures,
    }


def line(row: dict[str, Any]) -> str:
    parts = [
        f"{name} {row['mb_warm'][name]} -> {row['mb_at_the_end'][name]} MB ({each:+.3f} per {PER})"
        for name, each in row["mb_per_10000_requests"].items()
    ]
    head = f"{row['case']}: {row['requests']} requests, {row['requests_per_s']}/s; "
    failed = "".join(f"\n    FAILED {failure}" for failure in row["failures"])
    return head + "; ".join(parts) + failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--encodes", type=int, default=200_000)
    parser.add_argument("--generations", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=4, help="of a generated text")
    parser.add_argument("--under-way", type=int, default=32)
    parser.add_argument("--out", type=Path, default=records.RESULTS / "soak.jsonl")
    given = parser.parse_args()
    facts = machine.facts("fusewire", "nvidia-pytriton") | {"benchmark": "soak"}
    failed = 0
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        service = Service(Path(folder) / "service", sources(Path(folder)))
        try:
            service.wait_ready()
            counts = given.encodes, given.generations
            for way, requests in zip(_WAYS, counts, strict=True):
                row = soaked(service, way, requests, given.under_way, given.tokens)
                records.append(given.out, [facts | row])
                print(line(row), flush=True)
                failed += bool(row["failures"])
        finally:
            service.end()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

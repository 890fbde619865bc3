"""Where a server's time goes, by its own counters and its processes' CPU seconds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from benchmarks import machine

if TYPE_CHECKING:
    from fusewire.serving.supervisor.server import Server

_METRIC = re.compile(r"^fusewire_(tokenize|compute)_seconds_sum\{.*\} (\S+)$", re.MULTILINE)
_OF_A_REQUEST = ("queue", "compute_input", "compute_infer", "compute_output")

Seconds = dict[str, float]


def so_far(server: Server, model: str) -> Seconds:
    """Returns the seconds since the server began: CPU of its processes, and its counters."""
    stubs = sum(machine.cpu_s(stub.pid) for stub in server.process.stubs())
    answer = server.endpoint.call(f"models/{model}/stats")["model_stats"][0]
    counters = answer["inference_stats"]
    return {
        "cpu_triton": machine.cpu_s(server.process.pid),
        "cpu_backend": stubs,
        "executions": answer["execution_count"],
        "requests": counters["success"]["count"],
        **{name: int(counters[name]["ns"]) * 1e-9 for name in _OF_A_REQUEST},
        **{name: float(value) for name, value in _METRIC.findall(server.endpoint.metrics())},
    }


def add_since(before: Seconds, now: Seconds, spent: Seconds) -> None:
    """Adds the difference of the two to `spent`."""
    for name, value in now.items():
        spent[name] = spent.get(name, 0.0) + value - before.get(name, 0.0)


def row(spent: Seconds, wall: float, size: int, instances: int = 1) -> dict[str, float]:
    """Returns a request's ms by Triton's counters, and shares of the wall time: those of tokenize
    and compute are of one instance's time; CPU seconds count every core. `size`: sequences per
    request."""
    ms = {
        f"{name}_ms": round(spent[name] / max(spent["requests"], 1) * 1e3, 3)
        for name in _OF_A_REQUEST
    }
    shares = {
        f"{name}_share": round(spent.get(name, 0.0) / wall / instances, 3)
        for name in ("tokenize", "compute")
    }
    cores = {
        f"{name}_share": round(spent.get(name, 0.0) / wall, 3)
        for name in ("cpu_client", "cpu_triton", "cpu_backend")
    }
    executed = round(spent["requests"] * size / max(spent["executions"], 1), 1)
    return {"sequences_per_execution": executed, **ms, **shares, **cores}

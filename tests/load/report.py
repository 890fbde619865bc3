"""Numbers, Markdown and a plot of a load run, from its request log and the server's counters."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from fusewire_client import ModelStatistics


@dataclass(frozen=True)
class Sample:
    """The server's counters at a moment."""

    time: float
    statistics: ModelStatistics


@dataclass(frozen=True)
class Run:
    """One profile: `time` [n] seconds since the epoch, at the end of each request; `ms` [n]."""

    profile: str
    users: int
    rate: float | None
    time: np.ndarray
    ms: np.ndarray
    errors: dict[str, int]
    samples: list[Sample]

    @property
    def seconds(self) -> float:
        return float(self.time[-1] - self.time[0]) if len(self.time) > 1 else 0.0

    @property
    def samples_under_load(self) -> list[Sample]:
        """Those between the first answer and the last: the texts asked alone before are no load."""
        return [one for one in self.samples if self.time[0] <= one.time <= self.time[-1]]


def read_log(path: Path) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """(times, milliseconds, count of each error), in the order of time."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    order = np.argsort([float(row["time"]) for row in rows])
    times = np.array([float(row["time"]) for row in rows])[order]
    ms = np.array([float(row["ms"]) for row in rows])[order]
    return times, ms, dict(Counter(row["error"] for row in rows if row["ok"] == "0"))


def summary(run: Run) -> dict[str, Any]:
    """The numbers of a run. Batch size: sequences per execution between first and last sample.

    A run of less than two samples is refused: there is nothing to take a difference of.
    """
    samples = run.samples_under_load
    if len(samples) < 2:
        raise ValueError(
            f"{run.profile}: got {run.seconds:.1f} s of load, wanted longer; --seconds"
        )
    first, last = samples[0].statistics, samples[-1].statistics
    executions = last.executions - first.executions
    requests = last.requests - first.requests
    p50, p95, p99 = np.percentile(run.ms, [50, 95, 99]) if len(run.ms) else [float("nan")] * 3
    return {
        "profile": run.profile,
        "users": run.users,
        "rate_wanted": run.rate,
        "requests": len(run.ms),
        "failures": sum(run.errors.values()),
        "errors": run.errors,
        "requests_per_s": round(len(run.ms) / run.seconds, 1) if run.seconds else 0.0,
        "p50_ms": round(float(p50), 2),
        "p95_ms": round(float(p95), 2),
        "p99_ms": round(float(p99), 2),
        "mean_batch": round((last.inferences - first.inferences) / max(executions, 1), 2),
        "executions": executions,
        "queue_ms": round((last.queue_seconds - first.queue_seconds) / max(requests, 1) * 1e3, 2),
        "server_failures": last.failures - first.failures,
    }


def markdown(summaries: list[dict[str, Any]], facts: dict[str, str]) -> str:
    """The report for people."""
    columns = {
        "profile": "profile",
        "users": "users",
        "requests": "requests",
        "failures": "failures",
        "requests_per_s": "requests/s",
        "p50_ms": "p50 ms",
        "p95_ms": "p95 ms",
        "p99_ms": "p99 ms",
        "mean_batch": "mean batch",
        "queue_ms": "queue ms",
    }
    lines = ["# Load", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(one[key]) for key in columns) + " |" for one in summaries]
    errors = [f"- {n} x {text}" for one in summaries for text, n in one["errors"].items()]
    if errors:
        lines += ["", "Failures:", "", *errors]
    return "\n".join([*lines, "", "![over time](report.png)", ""])


def plot(runs: list[Run], path: Path) -> None:
    """Over the seconds of each run: throughput, percentiles of the response time, batch size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, len(runs), figsize=(6 * len(runs), 8), squeeze=False)
    for column, run in enumerate(runs):
        throughput, latency, batch = axes[:, column]
        second = (run.time - run.time[0]).astype(int)
        seconds = np.arange(max(second.max(), 1))  # the last second is not a whole one
        throughput.step(seconds, np.bincount(second)[: len(seconds)], where="post")
        throughput.set(title=f"{run.profile}, {run.users} users", ylabel="requests / s")
        for percent in (50, 95, 99):
            values = [
                np.percentile(run.ms[second == s], percent) if (second == s).any() else np.nan
                for s in seconds
            ]
            latency.plot(seconds, values, label=f"p{percent}")
        latency.set(ylabel="response ms")
        latency.legend()
        times, sizes = batch_sizes(run)
        batch.step(times, sizes, where="post")
        batch.set(ylabel="sequences / execution", xlabel="s")
        for axis in axes[:, column]:
            axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def batch_sizes(run: Run) -> tuple[list[float], list[float]]:
    """(seconds, mean batch since the sample before) where the model ran in between."""
    times, sizes = [], []
    samples = run.samples_under_load
    for before, after in pairwise(samples):
        executions = after.statistics.executions - before.statistics.executions
        if executions:
            times.append(before.time - run.time[0])
            sizes.append((after.statistics.inferences - before.statistics.inferences) / executions)
    return times, sizes

"""Numbers, Markdown and a plot of a load run, from its request log and the server's counters."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from fusewire_client import ModelStatistics

# What a stream reports beside its whole: request types of locustfile_generation.
FIRST_TOKEN, INTER_TOKEN = "first token", "inter-token"


@dataclass(frozen=True)
class Times:
    """Of requests in the order of their ends: `time` [n], seconds since the epoch; `ms` [n]."""

    time: np.ndarray
    ms: np.ndarray

    def percentiles(self) -> list[float]:
        """p50, p95 and p99 in ms."""
        if not len(self.ms):
            return [float("nan")] * 3
        return [round(float(each), 2) for each in np.percentile(self.ms, [50, 95, 99])]


@dataclass(frozen=True)
class Sample:
    """The server's counters at a moment."""

    time: float
    statistics: ModelStatistics


@dataclass(frozen=True)
class Run:
    """One profile. `streams`: of generated text, what they report beside their whole, by type."""

    profile: str
    users: int
    rate: float | None
    whole: Times
    errors: dict[str, int]
    samples: list[Sample]
    streams: dict[str, Times] = field(default_factory=dict)

    @property
    def time(self) -> np.ndarray:
        return self.whole.time

    @property
    def seconds(self) -> float:
        return float(self.time[-1] - self.time[0]) if len(self.time) > 1 else 0.0

    @property
    def samples_under_load(self) -> list[Sample]:
        """Those between the first answer and the last: the texts asked alone before are no load."""
        return [one for one in self.samples if self.time[0] <= one.time <= self.time[-1]]


def read_log(path: Path) -> tuple[Times, dict[str, int], dict[str, Times]]:
    """Whole requests, the count of each error, and what streams report besides."""
    with path.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["time"]))
    errors = Counter(row["error"] for row in rows if row["ok"] == "0")
    streams = {kind: _times(rows, {kind}) for kind in (FIRST_TOKEN, INTER_TOKEN)}
    streams = {kind: times for kind, times in streams.items() if len(times.ms)}
    whole = {row["type"] for row in rows} - {FIRST_TOKEN, INTER_TOKEN}
    return _times(rows, whole), dict(errors), streams


def _times(rows: list[dict[str, str]], types: set[str]) -> Times:
    chosen = [row for row in rows if row["type"] in types]
    return Times(*(np.array([float(row[key]) for row in chosen]) for key in ("time", "ms")))


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
    p50, p95, p99 = run.whole.percentiles()
    found = {
        "profile": run.profile,
        "users": run.users,
        "rate_wanted": run.rate,
        "requests": len(run.time),
        "failures": sum(run.errors.values()),
        "errors": run.errors,
        "requests_per_s": round(len(run.time) / run.seconds, 1) if run.seconds else 0.0,
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "mean_batch": round((last.inferences - first.inferences) / max(executions, 1), 2),
        "executions": executions,
        "queue_ms": round((last.queue_seconds - first.queue_seconds) / max(requests, 1) * 1e3, 2),
        "server_failures": last.failures - first.failures,
    }
    for kind, times in run.streams.items():
        name = kind.replace(" ", "_").replace("-", "_")
        found |= {
            f"{name}_p{q}_ms": ms for q, ms in zip((50, 95, 99), times.percentiles(), strict=True)
        }
    return found


COLUMNS = {
    "profile": "profile",
    "users": "users",
    "requests": "requests",
    "failures": "failures",
    "requests_per_s": "requests/s",
    "p50_ms": "p50 ms",
    "p95_ms": "p95 ms",
    "p99_ms": "p99 ms",
}
BATCHES = {"mean_batch": "mean batch", "queue_ms": "queue ms"}
STREAMS = {
    "first_token_p50_ms": "first token p50 ms",
    "first_token_p99_ms": "p99 ms",
    "inter_token_p50_ms": "inter-token p50 ms",
    "inter_token_p99_ms": "p99 ms",
}


def markdown(summaries: list[dict[str, Any]], facts: dict[str, str]) -> str:
    """The report for people: a table of requests, a table of streams, as far as there are any."""
    lines = ["# Load", "", *(f"- {name}: {value}" for name, value in facts.items())]
    streams = [one for one in summaries if "first_token_p50_ms" in one]
    requests = [one for one in summaries if one not in streams]
    for rows, columns in ((requests, COLUMNS | BATCHES), (streams, COLUMNS | STREAMS)):
        if rows:
            lines += ["", "| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
            lines += [
                "| " + " | ".join(str(one.get(k, "")) for k in columns) + " |" for one in rows
            ]
    errors = [f"- {n} x {text}" for one in summaries for text, n in one["errors"].items()]
    if errors:
        lines += ["", "Failures:", "", *errors]
    return "\n".join([*lines, "", "![over time](report.png)", ""])


def plot(runs: list[Run], path: Path) -> None:
    """Over the seconds of each run: throughput, percentiles of the response time, and the batch
    size, of streams the times to first token and between tokens in its place."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, len(runs), figsize=(6 * len(runs), 8), squeeze=False)
    for column, run in enumerate(runs):
        throughput, latency, last = axes[:, column]
        second = (run.time - run.time[0]).astype(int)
        seconds = np.arange(max(second.max(), 1))  # the last second is not a whole one
        throughput.step(seconds, np.bincount(second)[: len(seconds)], where="post")
        throughput.set(title=f"{run.profile}, {run.users} users", ylabel="requests / s")
        _percentiles(latency, run, run.whole, (50, 95, 99), "")
        latency.set(ylabel="response ms")
        latency.legend()
        if run.streams:
            for kind, times in run.streams.items():
                _percentiles(last, run, times, (50, 99), f"{kind} ")
            last.set(ylabel="ms", xlabel="s", yscale="log")
            last.legend()
        else:
            last.step(*batch_sizes(run), where="post")
            last.set(ylabel="sequences / execution", xlabel="s")
        for axis in axes[:, column]:
            if axis.get_yscale() != "log":
                axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _percentiles(axis: Any, run: Run, times: Times, percents: tuple[int, ...], what: str) -> None:
    """A line a percentile, a point a second of the run."""
    second = (times.time - run.time[0]).astype(int)
    seconds = np.arange(max(second.max(), 1))
    for percent in percents:
        values = [
            np.percentile(times.ms[second == s], percent) if (second == s).any() else np.nan
            for s in seconds
        ]
        axis.plot(seconds, values, label=f"{what}p{percent}")


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

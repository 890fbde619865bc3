"""The table of TurboTransformers' experiment, from its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.records import Row, Rows
from benchmarks.turbo_service import Served

BENCHMARK = "turbo"


def statistics(served: Served) -> dict[str, Any]:
    answered = len(served.waited) - served.unanswered
    p50, p99 = (round(float(np.percentile(served.waited, q)) * 1e3, 2) for q in (50, 99))
    return {
        "requests": len(served.waited),
        "unanswered": served.unanswered,
        "responses_per_s": round(answered / served.taken_s, 2),
        "requests_per_batch": round(answered / max(served.batches, 1), 2),
        "latency_ms_p50": p50,
        "latency_ms_p99": p99,
    }


def line(row: Row) -> str:
    return (
        f"{row['case']}: {row['responses_per_s']}/s of {row['requests']} requests, "
        f"{row['requests_per_batch']} a batch; latency p50 {row['latency_ms_p50']} p99 "
        f"{row['latency_ms_p99']} ms; {row['unanswered']} unanswered; others took "
        f"{row['disturbed']:.0%}"
    )


def table(rows: Rows) -> str:
    shares = sorted({row["share"] for row in rows if row["share"]})
    columns = [f"at {share:.0%}" for share in shares]
    lines = [
        f"{rows[0]['model']}, requests of random lengths, batches of at most {rows[0]['most']}: "
        "responses/s of a closed loop, and latency p50 / p99 in ms where requests arrive at random "
        "at shares of what fusewire answers in its closed loop (*: more than 1 in 100 were not "
        f"answered within the {rows[0]['seconds']:g} s, and count with the time until then):",
        "",
        "| " + " | ".join(["tokens", "system", "batches", "responses/s", *columns]) + " |",
        "|" + "---|" * (4 + len(shares)),
    ]
    for kind in dict.fromkeys(_kind(row) for row in rows):
        of = {row["share"]: row for row in rows if _kind(row) == kind}
        cells = [f"{of[0.0]['responses_per_s']:.1f}" if 0.0 in of else ""]
        cells += [_latency(of[share]) if share in of else "" for share in shares]
        lines.append("| " + " | ".join([*kind, *cells]) + " |")
    return "\n".join(lines)


def _kind(row: Row) -> tuple[str, str, str]:
    return row["lengths"], row["system"], row["policy"]


def _latency(row: Row) -> str:
    late = "*" if row["unanswered"] > 0.01 * row["requests"] else ""
    return f"{row['latency_ms_p50']:.0f} / {row['latency_ms_p99']:.0f}{late}"

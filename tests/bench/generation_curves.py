"""Latency over throughput: the table, the drawing, and how the two ways to batch compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench.generation_arrivals import POLICIES, Continuous, RunToCompletion


def times_at_equal_p99(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """For each rate of run to completion: the most that continuous batching does while its p99 of
    the time to first token is no worse, times what run to completion does."""
    sides = {name: [row for row in rows if row["policy"] == name] for name in POLICIES}
    found = []
    for row in sides[RunToCompletion.name]:
        p99 = row["first_token_ms_p99"]
        best = [
            each["tokens_per_s"]
            for each in sides[Continuous.name]
            if each["first_token_ms_p99"] <= p99
        ]
        if best:
            found.append({"p99_ms": p99, "times": round(max(best) / row["tokens_per_s"], 2)})
    return found


def table(rows: list[dict[str, Any]]) -> str:
    columns = {
        "tokens_per_s": "tokens/s",
        "first_token_ms_p50": "first token p50",
        "first_token_ms_p99": "p99",
        "inter_token_ms_p50": "between tokens p50",
        "inter_token_ms_p99": "p99",
    }
    lines = [
        "| requests/s (share) | batching | " + " | ".join(columns.values()) + " |",
        "|---" * (2 + len(columns)) + "|",
    ]
    for row in rows:
        cells = [f"{row.get(key, float('nan')):.1f}" for key in columns]
        rate = f"{row['rate']:.2f} ({row['share']:.0%})"
        lines.append(f"| {rate} | {row['policy']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Percentiles over throughput."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    kinds = {"first_token_ms": "time to first token, ms", "inter_token_ms": "between tokens, ms"}
    for axes, (key, label) in zip(figure.subplots(1, 2), kinds.items(), strict=True):
        for color, name in zip(("C0", "C1"), POLICIES, strict=True):
            of_policy = [row for row in rows if row["policy"] == name]
            x = [row["tokens_per_s"] for row in of_policy]
            for q, line in ((50, "--"), (99, "-")):
                y = [row[f"{key}_p{q}"] for row in of_policy]
                axes.plot(x, y, line, marker="o", ms=3, color=color, label=f"{name}, p{q}")
        axes.set(xlabel="tokens/s", ylabel=label, yscale="log")
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    figure.savefig(path)

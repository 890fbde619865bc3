"""Tables and plot of latency over throughput, from rows of generation_poisson.

    python -m benchmarks.generation_curves FILE [--plot curves.svg]

They compare continuous with run-to-completion batching.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.goal import Goal
from benchmarks.records import Rows, latest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BENCHMARK = "generation_poisson"
CONTINUOUS, RUN_TO_COMPLETION = "continuous", "run to completion"
# Distinguishable with any colour vision.
COLORS = {CONTINUOUS: "#0072B2", RUN_TO_COMPLETION: "#D55E00"}
KINDS = {"first_token_ms": "time to first token, ms", "inter_token_ms": "between tokens, ms"}
NONE = float("nan")
WANTED = 2.0  # ratio to the throughput of run-to-completion batching, at equal p99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="the file of rows")
    parser.add_argument("--plot", type=Path, help="where to draw them: .svg or .png")
    options = parser.parse_args()
    found = latest(options.rows, gpu=True) or latest(options.rows)
    rows = found.get(BENCHMARK)
    if not rows:
        raise SystemExit(
            f"{options.rows}: got no rows, wanted those of python -m benchmarks.{BENCHMARK}"
        )
    print(tables(rows))
    if options.plot:
        figure(rows).savefig(options.plot)


def times_at_equal_p99(
    rows: Rows, other: str = RUN_TO_COMPLETION, measure: str = "first_token_ms_p99"
) -> list[dict[str, float]]:
    """Returns, for each rate of another policy, the ratio of throughputs at equal latency: the
    highest tokens/s of continuous batching whose p99 of `measure` (by default the time to first
    token) is not worse, over the other's (0 where there is none)."""
    seen = [row for row in rows if measure in row]
    found = []
    for row in seen:
        if row["policy"] != other or not row["tokens_per_s"]:
            continue
        p99 = row[measure]
        equal = [
            each["tokens_per_s"]
            for each in seen
            if each["policy"] == CONTINUOUS and each[measure] <= p99
        ]
        times = round(max(equal, default=0.0) / row["tokens_per_s"], 2)
        found.append({"share": row["share"], "p99_ms": p99, "times": times})
    return found


def goals(rows: Rows) -> list[Goal]:
    """Returns the goals at the rate of run-to-completion batching where continuous batching gains
    least."""
    found = []
    for group in groups(rows):
        if times := [each["times"] for each in times_at_equal_p99(group)]:
            what = f"{group[0]['model']}, {group[0]['sequences']} sequences, continuous batching "
            what += "at equal p99, times run to completion's tokens/s"
            least = min(times)
            found.append(Goal(what, f">= {WANTED}", f"{least:.2f}", least >= WANTED))
    return found


def groups(rows: Rows) -> Iterator[Rows]:
    """Yields the rows that can be compared: those of a model and a maximum number of sequences, by
    load."""
    keys = dict.fromkeys((row["model"], row["sequences"]) for row in rows)
    for key in keys:
        of_key = [row for row in rows if (row["model"], row["sequences"]) == key]
        yield sorted(of_key, key=lambda row: row["share"])


def tables(rows: Rows) -> str:
    return "\n\n".join(_table(group) for group in groups(rows))


def _table(rows: Rows) -> str:
    (prompt, _, longest), (answer, _, most) = rows[0]["prompt"], rows[0]["answer"]
    lines = [
        f"{rows[0]['model']}, requests that arrive at random (Poisson, {rows[0]['seconds']:g} s at "
        f"each rate), prompts of up to {longest} tokens (median {prompt}), answers of up to {most} "
        f"({answer}), both log-normal, at most {rows[0]['sequences']} sequences at once: "
        "continuous batching, and the same engine with batches that run to completion (load: of "
        "what continuous batching does when requests always wait; none: requests without a token "
        "at the end of the run, whose wait until then counts):",
        "",
        "| load | requests/s | batching | tokens/s | first token, ms: p50 | p99 | none "
        "| between tokens, ms: p50 | p99 |",
        "|---" * 9 + "|",
        *map(line, rows),
    ]
    if times := times_at_equal_p99(rows):
        named = ", ".join(f"{each['times']:.2f} ({each['share']:.0%})" for each in times)
        what = "Times the throughput at equal p99 of the time to first token"
        lines += ["", f"{what}, by the load of run to completion: {named}."]
    return "\n".join(lines)


def line(row: dict[str, Any]) -> str:
    """Formats one measurement as a line of the table."""
    first, between = ([f"{row.get(f'{kind}_p{q}', NONE):.1f}" for q in (50, 99)] for kind in KINDS)
    none = f"{row['without_token']} of {row['requests']}"
    cells = [f"{row['share']:.0%}", f"{row['rate']:.2f}", row["policy"]]
    cells += [f"{row['tokens_per_s']:.0f}", *first, none, *between]
    return f"| {' | '.join(cells)} |"


def figure(rows: Rows) -> Figure:
    """Plots percentiles over throughput, with a row of plots per table."""
    from matplotlib.figure import Figure

    drawn = list(groups(rows))
    drawn_on = Figure(figsize=(10, 4 * len(drawn)), layout="constrained")
    for pair, group in zip(drawn_on.subplots(len(drawn), 2, squeeze=False), drawn, strict=True):
        for axes, (kind, label) in zip(pair, KINDS.items(), strict=True):
            for policy, color in COLORS.items():
                of_policy = [row for row in group if row["policy"] == policy]
                x = [row["tokens_per_s"] for row in of_policy]
                for q, style in ((50, "--"), (99, "-")):
                    y = [row.get(f"{kind}_p{q}", NONE) for row in of_policy]
                    name = f"{policy}, p{q}"
                    axes.plot(x, y, style, marker="o", ms=3, color=color, label=name)
            axes.set(xlabel="tokens/s", ylabel=label, yscale="log")
            axes.grid(alpha=0.3)
        title = f"{group[0]['model']}, {group[0]['device']}, {group[0]['sequences']} sequences"
        pair[0].set_title(title)
        pair[0].legend()
    return drawn_on


if __name__ == "__main__":
    main()

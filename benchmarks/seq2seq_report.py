"""The table and the goals of the seq2seq benchmark, from its rows."""

from __future__ import annotations

from benchmarks.goal import Goal
from benchmarks.records import Rows

OURS, RIVAL, INT8 = "fusewire", "ctranslate2", "ctranslate2-int8"
# Ratio to CTranslate2's time in fp32, by number of sources.
WANTED = {1: 1.3, 32: 1.2}


def goals(rows: Rows) -> list[Goal]:
    """Returns the goals by the smaller of two ratios: of time, and of CPU time."""
    found = []
    for row in rows:
        wanted = WANTED.get(row["sources"])
        if row["system"] != RIVAL or wanted is None:
            continue
        ratio = min(row["times_fusewire"], row["cpu_times_fusewire"])
        what = f"{row['model']} {row['case']}, times {RIVAL}"
        found.append(Goal(what, f">= {wanted}", f"{ratio:.2f}", ratio >= wanted))
    return found


def table(rows: Rows) -> str:
    """Returns a table with a line per case; without where and when it was measured."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    found = {(row["case"], row["system"]): row for row in rows}
    lines = [
        f"Translation, {rows[0]['model']} (sources x tokens of each -> new tokens), median ms / ms "
        "that the cores worked:",
        "",
        f"| | {' | '.join(systems)} | times {RIVAL} |",
        "|---" * (len(systems) + 2) + "|",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        cells = [
            f"{row['median_ms']:.0f} / {row['least_cpu_ms']:.0f}" if row else ""
            for row in (found.get((case, system)) for system in systems)
        ]
        rival = found.get((case, RIVAL))
        ratios = "times_fusewire", "cpu_times_fusewire"
        last = " / ".join(f"{rival[ratio]:.2f}" for ratio in ratios) if rival else ""
        lines.append(f"| {case} | {' | '.join(cells)} | {last} |")
    return "\n".join(lines)

"""The table and the goals of the seq2seq benchmark, from its rows."""

from __future__ import annotations

from benchmarks.goal import Goal
from benchmarks.records import Row, Rows

OURS, RIVAL = "fusewire", "ctranslate2"
OURS_INT8, RIVAL_INT8 = "fusewire-int8", "ctranslate2-int8"
INT8 = (OURS_INT8, RIVAL_INT8)
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
    ratios = {f"times {RIVAL}": (RIVAL, OURS)}
    if {OURS_INT8, RIVAL_INT8} <= {*systems}:
        ratios[f"times {RIVAL_INT8}, both in int8"] = RIVAL_INT8, OURS_INT8
    lines = [
        f"Translation, {rows[0]['model']} (sources x tokens of each -> new tokens), median ms / ms "
        "that the cores worked:",
        "",
        f"| | {' | '.join([*systems, *ratios])} |",
        "|---" * (1 + len(systems) + len(ratios)) + "|",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        cells = [
            f"{row['median_ms']:.0f} / {row['least_cpu_ms']:.0f}" if row else ""
            for row in (found.get((case, system)) for system in systems)
        ]
        cells += [
            _times(found.get((case, rival)), found.get((case, ours)))
            for rival, ours in ratios.values()
        ]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _times(rival: Row | None, ours: Row | None) -> str:
    """How many times as long the rival takes, and how many times the CPU time."""
    if rival is None or ours is None:
        return ""
    return " / ".join(f"{rival[of] / ours[of]:.2f}" for of in ("median_ms", "least_cpu_ms"))

"""The tables of fault injection (`python -m tests.chaos`), where processes are killed and frozen,
and of memory over many requests (`python -m tests.chaos.soak`)."""

from __future__ import annotations

from statistics import median

from benchmarks.records import Row, Rows

CHAOS, SOAK = "chaos", "soak"
_PROCESSES = ("server", "instance", "supervisor")
_COUNTS = ("requests", "ok", "typed", "refused", "broken", "late")


def chaos_table(rows: Rows) -> str:
    lines = [
        "A service under load whose models are reloaded by an operator, whose processes are killed "
        "and frozen, again and again; s until it is whole, what may pass until then, and what its "
        "clients got meanwhile: answers, errors that say what happened, connections that were "
        "refused or broken while tritonserver itself was away, and neither within 11 s:",
        "",
        "| what | times | healed s, median | worst | allowed | requests | answers | errors | "
        "refused | broken | late | not as promised |",
        "|" + "---|" * 12,
    ]
    struck = [row for row in rows if "healed_s" in row]
    for name in dict.fromkeys(row["name"] for row in struck):
        of = [row for row in struck if row["name"] == name]
        healed = [row["healed_s"] for row in of if row["healed_s"] is not None]
        never = len(of) - len(healed)
        counts = [str(sum(row[count] for row in of)) for count in _COUNTS]
        cells = [
            name,
            str(len(of)),
            f"{median(healed):.1f}" if healed else "never",
            "never" if never else f"{max(healed):.1f}",
            f"{max(row['limit_s'] for row in of):.1f}",
            *counts,
            str(sum(bool(row["failures"]) for row in of)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    left = [failure for row in rows if "healed_s" not in row for failure in row["failures"]]
    lines += ["", f"Left behind at the end: {'; '.join(left) or 'no process, memory or file'}."]
    lines += ["", _where(rows[-1])]
    return "\n".join(lines)


def soak_table(rows: Rows) -> str:
    lines = [
        "Memory that processes gain over many small requests, MB per 10,000 (asked: less than 1), "
        "and MB held at the end:",
        "",
        "| requests | count | a second | " + " | ".join(_PROCESSES) + " |",
        "|" + "---|" * (3 + len(_PROCESSES)),
    ]
    for row in rows:
        gained, held = row["mb_per_10000_requests"], row["mb_at_the_end"]
        cells = [row["case"], str(row["requests"]), f"{row['requests_per_s']:.0f}"]
        cells += [f"{gained[each]:.2f} ({held[each]:.0f})" for each in _PROCESSES]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", _where(rows[-1])]
    return "\n".join(lines)


def _where(row: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return f"{row['time'][:10]}, {row['cpu']}, {len(row['cpus'])} cores; {versions}."

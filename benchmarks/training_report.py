"""The tables and goals of the training benchmarks, from their rows."""

from __future__ import annotations

from benchmarks.case_table import case_table, systems_of
from benchmarks.goal import Goal
from benchmarks.records import Row, Rows
from tests.tolerance import PEAK_OVER_BOUND

BENCHMARK, MEMORY, OURS = "training", "training_memory", "fusewire"
GPU, GPU_MEMORY, DDP = "training_gpu", "training_gpu_memory", "training_ddp"
# Of the tokens/s of one process, times their number.
EFFICIENCY = {2: 0.95, 4: 0.92}


def goals(rows: Rows) -> list[Goal]:
    """Returns the goals: faster than each rival, by the smaller of two ratios: of time, and of CPU
    time."""
    found = []
    for row in rows:
        if row["system"] == OURS:
            continue
        ratio = min(row["times_fusewire"], row["cpu_times_fusewire"])
        what = f"{row['model']}, {row['case']}: step of {row['system']}, times ours"
        found.append(Goal(what, "> 1", f"{ratio:.2f}", ratio > 1))
    return found


def memory_goals(rows: Rows) -> list[Goal]:
    """Returns the goals of memory: plans at their liveness bound."""
    found = []
    for model in dict.fromkeys(row["model"] for row in rows):
        over = max(r.get("worst_peak_over_bound", 0.0) for r in rows if r["model"] == model)
        what = f"{model}, training: planned peak, times the liveness bound"
        found.append(Goal(what, f"<= {PEAK_OVER_BOUND}", f"{over:.3f}", over <= PEAK_OVER_BOUND))
    return found


def memory_table(rows: Rows) -> str:
    """Returns a table with a line per system, for each model."""
    lines = [
        "Memory of a training step beyond parameters and gradients, MiB:",
        "",
        "| | | peak | planned for layers | liveness bound | copies of weights, kept |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        planned, bound = (
            f"{row[key]:.1f}" if key in row else "" for key in ("planned_mib", "bound_mib")
        )
        case = f"{row['model']}, {row['case']} ({row['tokens']} of {row['padded_tokens']} tokens)"
        kept = f"{row['kept_mib']:.0f}" if row["kept_mib"] else ""
        cells = f"{row['peak_mib']:.1f} | {planned} | {bound} | {kept}"
        lines.append(f"| {case} | {row['system']} | {cells} |")
    return "\n".join(lines)


def gpu_table(rows: Rows) -> str:
    """Returns a table with a line per case: milliseconds of each system, and their ratio to our
    step."""
    systems = systems_of(rows)

    def cells(of_case: dict[str, Row]) -> list[str]:
        some = next(iter(of_case.values()))
        found = [of_case.get(system) for system in systems]
        ms = [f"{r['median_ms']:.2f} ({r['times_step']:.2f})" if r else "" for r in found]
        return [_tokens(some), f"{some['tokens_per_s']:,}", *ms]

    lines = case_table(["tokens, padded", "tokens/s", *systems], rows, cells)
    head = (
        "A step of training, median ms (times `Step`'s), and tokens/s of the first system (an "
        "image counts as one):"
    )
    return "\n".join([head, "", *lines])


def gpu_memory_table(rows: Rows) -> str:
    """Returns a table with a line per case: the memory of each system."""
    systems = systems_of(rows)

    def cells(of_case: dict[str, Row]) -> list[str]:
        found = [of_case.get(system) for system in systems]
        sizes = [f"{row['peak_gib']:.2f}" if row else "" for row in found]
        return [_tokens(next(iter(of_case.values()))), *sizes]

    lines = case_table(["tokens, padded", *systems], rows, cells)
    head = "Memory that a step of training holds on a GPU, parameters and moments too, GiB:"
    return "\n".join([head, "", *lines])


def ddp_goals(rows: Rows) -> list[Goal]:
    """Returns the goals of several processes: their efficiency."""
    found = []
    for row in rows:
        if row["system"].startswith(OURS) and row["processes"] in EFFICIENCY:
            wanted = EFFICIENCY[row["processes"]]
            what = f"{row['model']}, {row['case']}: of {row['system']}"
            reached = row["efficiency"] >= wanted
            found.append(Goal(what, f">= {wanted:.0%}", f"{row['efficiency']:.1%}", reached))
    return found


def ddp_table(rows: Rows) -> str:
    """Returns a table with a line per case: tokens/s of all processes, and their efficiency."""
    systems = systems_of(rows)

    def cells(of_case: dict[str, Row]) -> list[str]:
        some = next(iter(of_case.values()))
        found = [of_case.get(system) for system in systems]
        rates = [f"{r['tokens_per_s']} ({r['efficiency']:.1%})" if r else "" for r in found]
        return [_tokens(some), *rates]

    lines = case_table(["tokens, padded", *systems], rows, cells)
    head = "Training by several processes, tokens/s of all (of one process alone, times as many):"
    return "\n".join([head, "", *lines])


def table(rows: Rows) -> str:
    """Returns a table with a line per case; without where and when it was measured."""
    systems = systems_of(rows)
    rivals = [system for system in systems if system != OURS]

    def cells(of_case: dict[str, Row]) -> list[str]:
        own, others = (list(map(of_case.get, names)) for names in (systems, rivals))
        ms = [f"{r['median_ms']:.0f} / {r['least_cpu_ms']:.0f}" if r else "" for r in own]
        keys = "times_fusewire", "cpu_times_fusewire"
        times = [" / ".join(f"{r[key]:.2f}" for key in keys) if r else "" for r in others]
        return [_tokens(of_case[OURS]), *ms, *times]

    ratios = [f"times ours, {rival}" for rival in rivals]
    lines = case_table(["tokens, padded", *systems, *ratios], rows, cells)
    return "\n".join(["A step of training, median ms / ms that the cores worked:", "", *lines])


def _tokens(row: Row) -> str:
    return f"{row['tokens']}, {row['padded_tokens']}"

"""The table and the plot of `encoder.py`, from its rows."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

# The project's goals by model: (case, rival) -> times faster.
GOALS = {
    ("MiniLM-L6", "mixed 32", "best"): 1.25,
    ("BERT-base", "mixed 32", "best"): 1.15,
    ("MiniLM-L6", "mixed 32", "transformers"): 1.9,
    ("BERT-base", "mixed 32", "transformers"): 1.9,
    **{(m, c, "best"): 1.0 for m in ("MiniLM-L6", "BERT-base") for c in ("1x128", "1x512")},
    **{(m, "1x16", "onnxruntime"): 1.0 for m in ("MiniLM-L6", "BERT-base")},
}


def cpu_name() -> str:
    """Returns the processor's name and its relevant instruction sets."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    lines = [line.partition(":") for line in info.read_text().splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    flags = fields.get("flags", "").split()
    sets = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16") if flag in flags]
    return f"{fields.get('model name', platform.machine())} ({' '.join(sets)})"


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a table of medians in ms with a line per case, and then each goal with the value
    reached."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    cases = list(dict.fromkeys((row["model"], row["case"]) for row in rows))
    ms = {(r["model"], r["case"], r["system"]): r["median_ms"] for r in rows}
    lines = ["", "median ms".ljust(22) + "".join(s.rjust(14) for s in systems)]
    for model, case in cases:
        values = [ms[model, case, s] for s in systems]
        lines.append(f"{model} {case}".ljust(22) + "".join(f"{v:14.2f}" for v in values))
    if "fusewire" in systems:
        lines += ["", *(_goal(key, goal, ms) for key, goal in GOALS.items() if _measured(key, ms))]
    return "\n".join(lines)


def _measured(key: tuple[str, str, str], ms: dict[tuple[str, str, str], float]) -> bool:
    model, case, against = key
    wanted = "fusewire" if against == "best" else against
    return (model, case, wanted) in ms


def _goal(key: tuple[str, str, str], goal: float, ms: dict[tuple[str, str, str], float]) -> str:
    model, case, against = key
    own = ms[model, case, "fusewire"]
    if against == "best":
        rivals = [v for (m, c, s), v in ms.items() if (m, c) == (model, case) and s != "fusewire"]
        other, name = min(rivals), "the best rival"
    else:
        other, name = ms[model, case, against], against
    verdict = "reached" if other / own >= goal else "missed"
    return f"{model} {case}: {other / own:.2f} x {name}, goal {goal} ({verdict})"


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Plots tokens per second, with a panel per model and a group of bars per case."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    models = list(dict.fromkeys(row["model"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    figure, axes = plt.subplots(1, len(models), figsize=(6 * len(models), 4), squeeze=False)
    width = 0.8 / len(systems)
    for axis, model in zip(axes[0], models, strict=True):
        cases = list(dict.fromkeys(row["case"] for row in rows if row["model"] == model))
        for index, system in enumerate(systems):
            values = [
                row["tokens_per_s"]
                for case in cases
                for row in rows
                if (row["model"], row["case"], row["system"]) == (model, case, system)
            ]
            places = [
                place + (index - (len(systems) - 1) / 2) * width for place in range(len(cases))
            ]
            axis.bar(places, values, width, label=system)
        axis.set_xticks(range(len(cases)), cases)
        axis.set_title(model)
        axis.set_ylabel("real tokens / s")
    axes[0][0].legend(fontsize=8)
    figure.suptitle(f"fp32, {rows[0]['threads']} threads, {rows[0]['cpu']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)

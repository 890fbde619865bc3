"""The table and goals of the benchmark of weight formats, from its rows."""

from __future__ import annotations

from benchmarks.goal import Goal
from benchmarks.records import Row, Rows

BENCHMARK, NEW_LENGTH = "weight_formats", "1 of a new length"
EXACT, BFLOAT16, INT8 = (f"fusewire {name}" for name in ("float32", "bfloat16", "int8"))

# By model and input: the ratio of int8 to our float32 that is wanted.
_TIMES_FLOAT32 = {("MiniLM-L6", "mixed 32"): 2.2, ("BERT-base", "mixed 32"): 2.6}


def table(rows: Rows) -> str:
    """Returns a table with a line per system and model; without where and when it was measured."""
    inputs = list(dict.fromkeys(row["input"] for row in rows))
    found = _found(rows)
    lines = [
        "Weights in several formats, median ms of a batch, of a step of GPT-2's; of lengths that "
        "were not seen before, the first call and the second. Nearness to float32: mean cosine of "
        "hidden states, or the share of greedy tokens up to the first other one:",
        "",
        f"| | {' | '.join(inputs)} | near float32 |",
        "|---" * (len(inputs) + 2) + "|",
    ]
    for model, system in dict.fromkeys((row["model"], row["system"]) for row in rows):
        of_system = [found.get((model, given, system)) for given in inputs]
        near = next(row for row in of_system if row)
        share = near["mean_cosine"] if "mean_cosine" in near else near["same_tokens"]
        cells = [*map(_cell, of_system), f"{share:.4f}"]
        lines.append(f"| {model}, {system} | {' | '.join(cells)} |")
    return "\n".join(lines)


def goals(rows: Rows) -> list[Goal]:
    """Returns the goals against our float32, and against others' int8 where they were measured
    too."""
    found = _found(rows)
    wanted: list[Goal] = []
    for model, given in dict.fromkeys((row["model"], row["input"]) for row in rows):
        of_case = {s: row["ms"] for (m, i, s), row in found.items() if (m, i) == (model, given)}
        ours, exact = of_case.get(INT8), of_case.get(EXACT)
        if ours is None or exact is None or given == NEW_LENGTH:
            continue
        label = f"int8, {model} {given}, times"
        if (least := _TIMES_FLOAT32.get((model, given))) is not None:
            wanted.append(_at_least(f"{label} float32", least, exact / ours))
        theirs = {s: ms for s, ms in of_case.items() if s.endswith("int8") and s != INT8}
        least = {"mixed 32": 1.8, "decode 1": 1.0, "decode 8": 1.0}.get(given)
        if least is not None and "ctranslate2 int8" in theirs:
            times = theirs["ctranslate2 int8"] / ours
            wanted.append(_at_least(f"{label} ctranslate2 int8", least, times))
        elif least is None and theirs:
            best = min(theirs, key=lambda system: theirs[system])
            wanted.append(_at_least(f"{label} {best}, the best rival", 1.1, theirs[best] / ours))
        if given == "mixed 32" and BFLOAT16 in of_case:
            what = f"bfloat16, {model} {given}, times float32"
            wanted.append(_at_least(what, 1.5, exact / of_case[BFLOAT16]))
    return wanted


def _found(rows: Rows) -> dict[tuple[str, str, str], Row]:
    return {(row["model"], row["input"], row["system"]): row for row in rows}


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    first = f"{row['first_ms']:.1f}, then " if "first_ms" in row else ""
    return f"{first}{row['ms']:.1f}"


def _at_least(what: str, least: float, times: float) -> Goal:
    return Goal(what, f">= {least}", f"{times:.2f}", times >= least)

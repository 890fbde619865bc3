"""What the rows of the benchmark of weight formats say: a table."""

from __future__ import annotations

from benchmarks.records import Rows

BENCHMARK, EXACT = "weight_formats", "float32"


def table(rows: Rows) -> str:
    """A line a case; without where and when it was measured."""
    formats = list(dict.fromkeys(row["system"] for row in rows))
    found = {(row["model"], row["input"], row["system"]): row for row in rows}
    fewer = [name for name in formats if name != EXACT]
    headings = [f"{name} ms" for name in formats] + [f"{name}, times float32" for name in fewer]
    headings += [f"{name}, mean cosine" for name in fewer]
    lines = [
        "Encoders with weights in several formats, median ms of a batch, and the cosine of hidden "
        "states to those of float32:",
        "",
        f"| | {' | '.join(headings)} |",
        "|---" * (len(headings) + 1) + "|",
    ]
    for model, given in dict.fromkeys((row["model"], row["input"]) for row in rows):
        of_case = {name: found[model, given, name] for name in formats}
        cells = [f"{row['ms']:.1f}" for row in of_case.values()]
        cells += [f"{of_case[name]['times_float32']:.2f}" for name in fewer]
        cells += [f"{of_case[name]['mean_cosine']:.4f}" for name in fewer]
        lines.append(f"| {model}, {given} | {' | '.join(cells)} |")
    return "\n".join(lines)

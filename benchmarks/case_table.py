"""A table with one line for each model and case, from rows of several systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.records import Row, Rows


def systems_of(rows: Rows) -> list[str]:
    """Returns the systems in the order in which they were measured."""
    return list(dict.fromkeys(row["system"] for row in rows))


def case_table(
    columns: Sequence[str],
    rows: Rows,
    cells: Callable[[dict[str, Row]], Sequence[object]],
    *,
    between: str = ", ",
) -> list[str]:
    """Returns the lines of the table. `cells` returns the cells of a case from its rows by system,
    one for each column but the first, which has the model and case separated by `between`."""
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    cases: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row["model"], row["case"]), {})[row["system"]] = row
    for (model, case), of_case in cases.items():
        lines.append(f"| {model}{between}{case} | {' | '.join(map(str, cells(of_case)))} |")
    return lines

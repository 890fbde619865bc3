"""The table of the benchmark of weight formats on a GPU, from its rows."""

from __future__ import annotations

from benchmarks.case_table import case_table, systems_of
from benchmarks.records import Row, Rows

BENCHMARK = "weight_formats_gpu"
# Systems of ours; the others are rivals, whose weights and times have no counterpart in fp16.
NAMES = {
    "none": "fp16",
    "fp8": "fp8",
    "fp8_blocks": "fp8 in blocks",
    "int8": "int8",
    "int4": "4 bits",
    "fp8, fp8 KV": "fp8, fp8 KV cache",
}


def table(rows: Rows) -> str:
    """Returns a table with a line per case; without where and when it was measured."""
    measured = systems_of(rows)
    systems = [*(name for name in NAMES if name in measured), *sorted({*measured} - {*NAMES})]

    def cells(of_case: dict[str, Row]) -> list[str]:
        return [_cell(of_case.get(system)) for system in systems]

    title = (
        "Weights in several formats: ms (times as fast as in 16 bits, mean cosine to the result in "
        "16 bits) of a forward, of a step, and of the product of so many rows with a matrix of so "
        "many outputs and inputs, rows quantised in it unless they are given:"
    )
    headings = [NAMES.get(system, system) for system in systems]
    return "\n".join([title, "", *case_table(headings, rows, cells)])


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    ms = f"{row['ms']:.3g}" if row["ms"] < 1 else f"{row['ms']:.2f}"
    if row["system"] == "none" or row["system"] not in NAMES:
        return ms
    return f"{ms} ({row['times_fp16']:.2f}, {row['cosine']:.4f})"

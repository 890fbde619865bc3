"""The table of the benchmark of weight formats on a GPU, from its rows."""

from __future__ import annotations

from benchmarks.case_table import case_table, systems_of
from benchmarks.records import Row, Rows

BENCHMARK = "weight_formats_gpu"
# Our systems and their headings, in the order of the columns; other systems are rivals.
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
        "Weights in several formats, ms (times as fast as in 16 bits, mean cosine to its result): "
        "GEMMs (rows x outputs x inputs), forwards of BERT (sequences x longest) and decode steps "
        "of Llama-3-8B (sequences x context). A GEMM's time includes the quantisation of its rows, "
        "except where rows are given:"
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

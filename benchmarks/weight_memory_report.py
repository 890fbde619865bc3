"""The table of the benchmark of memory by the format of weights, from its rows."""

from __future__ import annotations

from benchmarks.case_table import case_table, systems_of
from benchmarks.records import Row, Rows

BENCHMARK, ON_GPUS = "weight_memory", "weight_memory_gpu"


def table(rows: Rows) -> str:
    """Returns a table with a line per model; without where and when it was measured."""
    systems = systems_of(rows)

    def cells(of_model: dict[str, Row]) -> list[str]:
        file = next(iter(of_model.values()))["file_mib"]
        return [f"{file:.0f}", *(f"{of_model[name]['taken_mib']:.0f}" for name in systems)]

    title = (
        "Memory of a model in service by the format of its weights, after a batch of 8 x 128 "
        "tokens, MiB:"
    )
    lines = case_table(
        ["file in float32", *systems], [r | {"case": ""} for r in rows], cells, between=""
    )
    return "\n".join([title, "", *lines])

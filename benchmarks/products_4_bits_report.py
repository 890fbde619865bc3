"""The table of GEMMs with 4-bit weights, from their rows."""

from __future__ import annotations

from benchmarks.case_table import case_table, systems_of
from benchmarks.records import Rows

BENCHMARK, MODEL = "products_4_bits", "Llama of 2048"


def table(rows: Rows) -> str:
    systems = systems_of(rows)
    error = {row["system"]: row["error"] for row in rows}
    return "\n".join(
        [
            "The four products of a layer, median ms, weights of 4 bits in groups of 128; `w4a8` "
            "and `int8` round rows of x to int8. Below, the root mean square error, of results "
            "that have 1; that of `int8` has the rounding of 4-bit numbers to 8 bits in it:",
            "",
            *case_table(systems, rows, lambda of: [f"{of[each]['ms']:.2f}" for each in systems]),
            f"| error | {' | '.join(f'{error[each]:.1e}' for each in systems)} |",
        ]
    )

"""Runs the benchmarks one after the other: `python -m benchmarks [encoder generation ...]`.

Adds JSON rows to bench-results, prints the goals with the measured values and writes
bench-results/summary.md. `python -m benchmarks.pages --take` brings them into the documentation.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import goals, tables
from benchmarks.records import RESULTS

BENCHMARKS = (
    "encoder",
    "encode",
    "generation",
    "seq2seq",
    "training",
    "training_memory",
    "memory",
    "served",
    "python_api",
    "gemm",
    "weight_formats",
    "products_4_bits",
    "weight_memory",
)


def without_onednn(chosen: list[str]) -> list[str]:
    """Returns the benchmarks without gemm where its wheels, which no other needs, are not
    installed."""
    if (Path(sys.prefix) / "include/oneapi/dnnl/dnnl.hpp").is_file():
        return chosen
    print("gemm: left out, oneDNN is not installed; python -m benchmarks.gemm says what it needs")
    return [name for name in chosen if name != "gemm"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("benchmarks", nargs="*", metavar="|".join(BENCHMARKS))
    options = parser.parse_args()
    unknown = [name for name in options.benchmarks if name not in BENCHMARKS]
    if unknown:
        parser.error(
            f"benchmarks: got {', '.join(unknown)}, wanted some of {', '.join(BENCHMARKS)}"
        )
    failed = []
    for name in options.benchmarks or without_onednn(list(BENCHMARKS)):
        print(f"== {name} (load average {os.getloadavg()[0]:.1f})", flush=True)
        # A process of its own, so that none inherits another's threads, memory or CPU affinity.
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode:
            failed.append(name)
    if not (found := goals.goals(RESULTS)):
        print("summary: no results yet")
        return int(bool(failed))
    path = RESULTS / "summary.md"
    parts = "# Benchmarks", goals.markdown(RESULTS), tables.markdown(RESULTS)
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print("== goals")
    for goal in found:
        verdict = "reached" if goal.reached else "missed"
        print(f"{verdict:8} {goal.what}: {goal.measured}, wanted {goal.wanted}")
    print(f"tables in {path}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

"""Every benchmark, one after the other: `python -m tests.bench`. Results in bench-results/."""

from __future__ import annotations

import subprocess
import sys

# Each in a process of its own, so that none inherits another's threads or memory.
BENCHMARKS = ("encoder", "memory")

for name in BENCHMARKS:
    print(f"== {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=True)

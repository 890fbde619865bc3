"""GEMMs are timed only on a stream that is tuning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tolerance

# In its own process: timings are kept for the lifetime of a process.
WORK = """
import json
import sys
from pathlib import Path

import numpy as np
from fusewire import kernels
from fusewire.placement import Placement

place, cache = Placement("cuda", "float16"), Path(sys.argv[1])
rng = np.random.default_rng(0)
weight = (rng.standard_normal((64, 128), np.float32) / 16).astype(np.float16)
linear = place.linear(weight, None)

def lines():
    return sum(len(path.read_text().splitlines()) for path in cache.glob("*.txt"))

def error(rows):
    x = rng.standard_normal((rows, 128), np.float32).astype(np.float16)
    out = place.empty(rows, 64)
    kernels.linear(out, place.floats(x), linear, "none", place.stream)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    return float(np.abs(place.numpy(out) - exact).max()), float(np.abs(exact).max())

found = {"error": [error(40)], "lines": [lines()]}
with place.tuning():
    sizes = place.rows_to_tune(70)
    found["error"] += map(error, sizes)
found["lines"].append(lines())
found["error"] += map(error, (40, 70, 71, 200, 5000))
found["lines"].append(lines())
print(json.dumps(found | {"sizes": sizes}))
"""


@pytest.mark.gpu
def test_nothing_is_timed_but_while_tuning(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(tmp_path)],
        env=os.environ | {"FUSEWIRE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sizes"] == [70, 64, 56, 48, 40, 32, 24, 16, 8, 1]
    before, tuned, after = found["lines"]
    header = 2
    assert (before, tuned) == (0, header + len(found["sizes"]))
    assert after == tuned
    for error, largest in found["error"]:
        assert error <= 4 * tolerance.ulp(largest, "float16")

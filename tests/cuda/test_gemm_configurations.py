"""Every configuration of our Hopper matrix products is right, whichever is the fastest.

A first process times a product, which writes the file of choices. Its lines are then changed to
others: products with other numbers of columns, each computed by one of the configurations. A
profiler tells which kernels ran, as a choice that cannot be followed is replaced silently.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

IN_FEATURES = 520  # nine stages of k, for up to eight slices
ROWS = (3, 40, 120, 200, 300)
MOST = 80  # configurations are tried up to this number; those that do not exist fall back
HOPPER = 2  # GemmKernel::kSm90
SHAPES = {"large_kernel": 8, "small_kernel": 7}  # tiles of 16-bit operands (sm90_gemm.cu)

WORK = """
import json
import sys

import numpy as np
import torch
from fusewire import kernels
from fusewire.placement import Placement
from tests.tolerance import allowed_error

op, tunes, columns, rows, k = json.loads(sys.argv[1])
place = Placement("cuda", "float16")
rng = np.random.default_rng(0)
found = []

def run(m, n):
    x, weight, bias = (
        rng.standard_normal(shape, np.float32).astype(np.float16) / size
        for shape, size in (((m, k), 1), ((n, k), 16), (n, 1))
    )
    linear, outputs = place.linear(weight, bias), n // 2 if op == "gated_linear" else n
    scratch = [place.empty(m, n)] if op == "gated_linear" else []
    out = place.empty(m, outputs)
    getattr(kernels, op)(out, *scratch, place.floats(x), linear, "silu", place.stream)

    def reference(dtype):
        x2, w2, b2 = (torch.from_numpy(each).cuda().to(dtype) for each in (x, weight, bias))
        both = torch.nn.functional.linear(x2, w2, b2)
        active = torch.nn.functional.silu(both[:, :outputs])
        return (active * both[:, outputs:] if scratch else active).double().cpu().numpy()

    truth = reference(torch.float64)
    allowed = allowed_error(truth, reference(torch.float16), "float16", k)
    if what := allowed.excess(place.numpy(out)):
        found.append(f"{m} x {n}: {what}")

names = set()
if tunes:
    with place.tuning():
        for m in rows:
            run(m, columns[0])
else:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for n in columns:
            for m in rows:
                run(m, n)
    names = {event.key for event in profile.key_averages()}
print(json.dumps([found, sorted(names)]))
"""


def checksum(text: str) -> int:
    """Returns FNV-1a, as in gemm_choice_file.cu."""
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def columns_of(configuration: int) -> int:
    return 1040 + 16 * configuration


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["linear", "gated_linear"])
def test_every_configuration_computes_a_product(op: str, tmp_path: Path):
    def run(tunes: bool, columns: list[int]) -> tuple[list[str], list[str]]:
        done = subprocess.run(
            [sys.executable, "-c", WORK, json.dumps([op, tunes, columns, ROWS, IN_FEATURES])],
            env=os.environ | {"FUSEWIRE_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found, kernels = json.loads(done.stdout.splitlines()[-1])
        return found, kernels

    wrong, _ = run(True, [1024])
    assert not wrong
    (path,) = tmp_path.glob("*.txt")
    lines = path.read_text().splitlines()
    timed = [line.split() for line in lines if line.split()[1] == "1024"]
    assert len(timed) == len(ROWS)
    made = []
    for configuration in range(MOST):
        for words in timed:
            changed = [*words[:-1]]
            changed[1], changed[7], changed[8] = map(
                str, (columns_of(configuration), HOPPER, configuration)
            )
            text = " ".join(changed)
            made.append(f"{text} {checksum(text):08x}")
    path.write_text("\n".join([*lines[:2], *made, ""]))
    wrong, kernels = run(False, [columns_of(configuration) for configuration in range(MOST)])
    assert not wrong
    assert {name: sum(name in each for each in kernels) for name in SHAPES} == SHAPES

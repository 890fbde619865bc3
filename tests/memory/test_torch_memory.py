"""torch with fusewire's allocator on a GPU, in a process per case (torch_process.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        "tensors_are_fusewires",
        "a_recorded_stream_is_waited_for",
        "a_captured_graph_keeps_its_memory",
        "out_of_memory_is_torchs_error",
        "too_late",
    ],
)
def test_torch_on_fusewires_memory(case: str) -> None:
    script = Path(__file__).with_name("torch_process.py")
    result = subprocess.run(
        [sys.executable, script, case], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr

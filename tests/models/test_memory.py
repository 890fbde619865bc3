"""The memory of a loaded model, in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fusewire.models import load_decoder
from fusewire.placement import Placement

from tests.held import held
from tests.models.tiny_decoders import tiny_decoder

_WIDTH = 512
# Loads a model and prints the resident MiB of its process: anonymous memory, and files.
_PROGRAM = """
import json, re, sys
from pathlib import Path
from fusewire.models import load_decoder
from fusewire.placement import Placement

def resident():
    rows = dict(re.findall(r"(\\w+):\\s+(\\d+) kB", Path("/proc/self/status").read_text()))
    return [int(rows[name]) / 1024 for name in ("RssAnon", "RssFile")]

place = Placement("cpu", *sys.argv[2:])
load_decoder(sys.argv[1], place).new_cache(1, 16)  # what is imported on the way
before = resident()
model = load_decoder(sys.argv[1], place)
print(json.dumps([after - begin for after, begin in zip(resident(), before)]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with nearly all of its weights in layers."""
    path = tmp_path_factory.mktemp("wide")
    tiny_decoder(path, "llama", hidden_size=_WIDTH, intermediate_size=12 * _WIDTH, head_dim=128)
    return path


def grown(folder: Path, *precision: str) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder), *precision],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    own, of_files = json.loads(done.stdout)
    return own, of_files


def test_the_file_is_not_held_beside_what_was_packed_of_it(folder):
    stored = (folder / "model.safetensors").stat().st_size / 2**20
    _, of_files = grown(folder)
    assert stored > 40
    assert of_files < stored / 10


def test_layers_take_a_half_in_bfloat16_and_a_quarter_in_int8(folder):
    def taken(*precision: str) -> int:
        return held(lambda: load_decoder(folder, Placement("cpu", *precision)))[1]

    exact = taken()
    assert exact > 100 << 20
    assert taken("bfloat16") < 0.51 * exact
    assert taken("auto", "int8") < 0.27 * exact  # with scales, and the head unquantised

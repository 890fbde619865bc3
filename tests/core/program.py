"""Programs of this folder, each linked with a few files of csrc/core."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


def compiled(output: Path, name: str, *core: str, flags: tuple[str, ...] = ()) -> Path:
    """Compiles `<name>.cc` with the named files of csrc/core; skips the test without a compiler."""
    if not COMPILER:
        pytest.skip("no C++ compiler here")
    sources = [Path(__file__).parent / f"{name}.cc"]
    sources += [ROOT / "csrc" / "core" / f"{each}.cc" for each in core]
    command = [COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", *flags, "-pthread"]
    built = subprocess.run(
        [*command, f"-I{ROOT / 'csrc'}", *sources, "-o", output],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return output


def run(program: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )

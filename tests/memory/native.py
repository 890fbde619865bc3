"""The memory library compiled with test code: as a program with sanitizers, or to load here."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CORE = [
    ROOT / "csrc" / "core" / f"{name}.cc"
    for name in (
        "allocator",
        "raw_memory",
        "segment_cache",
        "segment_cache_streams",
        "stream_memory",
        "torch_allocator",
        "workspace",
        "workspace_plan",
    )
]
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
FLAGS = ["-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer"]
INCLUDES = [f"-I{ROOT / 'csrc'}", f"-I{HERE}"]


def compiled(output: Path, sources: list[str], *flags: str) -> Path:
    """Links the named files of this folder with the memory library."""
    if not COMPILER:
        pytest.skip("no C++ compiler here")
    files = [*CORE, *(HERE / name for name in sources)]
    command = [COMPILER, *FLAGS, *flags, "-pthread", *INCLUDES, *files, "-o", output]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return output


def library(folder: Path, *sources: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(compiled(folder / "memory.so", list(sources), "-shared", "-fPIC")))

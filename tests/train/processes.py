"""Processes that train together, started by torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def run(module: str, count: int, folder: Path, *others: str) -> list[dict[str, Any]]:
    """What each process of `python -m module FOLDER ...` left in FOLDER/RANK.pt."""
    command = [*TORCHRUN, str(count), "-m", module, folder, *others]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)]


def meet() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    return distributed.get_rank(), distributed.get_world_size()

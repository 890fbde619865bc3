"""Processes that train together: those of torchrun, or as it starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import distributed

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
FORKED = (sys.executable, "-m", "tests.train.forked")
# Where processes train together, each on a GPU of its own.
EACH_DEVICE = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu(count=2))]


def run(
    module: str, count: int, folder: Path, device: str, *others: str, torchrun: bool = False
) -> list[dict[str, Any]]:
    """What each process of `python -m module FOLDER DEVICE ...` left in FOLDER/RANK.pt. On GPUs all
    are torchrun's: no process uses one that was forked from one that knows it."""
    started = (
        (*TORCHRUN, str(count), "-m") if torchrun or device == "cuda" else (*FORKED, str(count))
    )
    command = [*started, module, folder, device, *others]
    environment = os.environ | {"NCCL_NVLS_ENABLE": "0"}  # docs/training.md says why
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt", map_location="cpu") for rank in range(count)]


def meet(device: str) -> tuple[int, int, torch.device]:
    """The number of this process, how many there are, and where this one trains: on "cpu" all do,
    on "cuda" each on its GPU."""
    torch.set_num_threads(1)
    rank = int(os.environ["LOCAL_RANK"])
    own = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    distributed.init_process_group("nccl" if own.type == "cuda" else "gloo")
    return rank, distributed.get_world_size(), own


def part() -> NoReturn:
    """Ends this process, as its last act.

    A thread of gloo may still have a tensor or a hook of Python to drop. It takes the GIL for that,
    and in an interpreter that is ending this aborts the process ("terminate called without an
    active exception"), so the interpreter does not end: the process does.
    """
    distributed.destroy_process_group()
    os._exit(0)

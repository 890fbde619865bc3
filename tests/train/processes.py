"""Processes that train together, as torchrun starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed


def run(module: str, count: int, folder: Path, *others: str) -> list[dict[str, Any]]:
    """What each process of `python -m module RANK COUNT FOLDER ...` left in FOLDER/RANK.pt."""
    command = [sys.executable, "-m", module]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(count), folder, *others], stderr=subprocess.PIPE, text=True
        )
        for rank in range(count)
    ]
    errors = [process.communicate(timeout=300)[1] for process in running]
    for process, said in zip(running, errors, strict=True):
        assert process.returncode == 0, said
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)]


def meet(rank: int, count: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count
    )

"""One of the processes that take whole steps together: FOLDER DEVICE NAME.

Each has some rows of every batch, and of every third step two batches. The first
has no label in one step. The losses of its steps, and those of a loop of one process over all rows,
go to FOLDER/RANK.pt, with the weights of both.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fusewire import train
from fusewire.errors import ConfigurationError
from torch import distributed

from tests.train.processes import meet, part
from tests.train.test_step import batches, by_hand, joined, prepare


def main(folder: Path, device: str, name: str) -> None:
    rank, count, own_device = meet(device)
    model, _ = prepare(name, own_device, segments=2)
    twin = copy.deepcopy(model)
    settings: dict[str, Any] = {"lr": 1e-3, "eps": 1e-4, "max_grad_norm": 1.0}
    optimizer = train.Adam(model.parameters(), process_group=distributed.group.WORLD, **settings)
    other = train.Adam(twin.parameters(), **settings)
    headed = name == "GPT2LMHeadModel"
    criterion = train.CrossEntropy().of_model if headed else None
    step = train.Step(model, optimizer, loss=criterion)
    more = train.Adam(
        [*model.parameters(), torch.nn.Parameter(torch.zeros(3, device=own_device))],
        process_group=distributed.group.WORLD,
    )
    with pytest.raises(ConfigurationError, match="parameters that are not the model's"):
        train.Step(model, more)
    every = batches(name)
    every[4]["labels"][::count] = -100  # all that the first process has of this batch
    seen: dict[str, Any] = {"got": [], "wanted": []}
    for begin, end in ((0, 1), (1, 2), (2, 4), (4, 5), (5, 6), (6, 8), (8, 9), (9, 10)):
        rows = [{key: value[rank::count] for key, value in b.items()} for b in every[begin:end]]
        # Not as many of each: the last row of the last batch is left out.
        whole = every[begin:end]
        if rank == (len(whole[-1]["input_ids"]) - 1) % count:
            rows[-1] = {key: value[:-1] for key, value in rows[-1].items()}
        whole[-1] = {key: value[:-1] for key, value in whole[-1].items()}
        seen["got"].append(step(rows if len(rows) > 1 else rows[0]).cpu())
        seen["wanted"].append(by_hand(twin, other, joined(whole), device).cpu())
        assert abs(optimizer.gradient_norm / other.gradient_norm - 1) < 1e-3
    seen["replays"] = step.replays
    seen["weights"] = [p.detach().cpu() for p in model.parameters()]
    torch.save(seen, folder / f"{rank}.pt")
    part()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

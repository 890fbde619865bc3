"""One of the processes that take whole steps with a GradScaler: FOLDER DEVICE.

The loss of one step is infinite in one process alone. Scales and weights behind each step go to
FOLDER/RANK.pt.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
from fusewire import train
from torch import distributed

from tests.train.processes import meet, part
from tests.train.test_step import batches, prepare

NAME = "BertForSequenceClassification"
STEPS, INFINITE, SCALE = 7, 3, 2.0**10


def main(folder: Path, device: str) -> None:
    rank, count, own_device = meet(device)
    model, _ = prepare(NAME, own_device, segments=2)
    optimizer = train.Adam(
        model.parameters(), lr=1e-3, max_grad_norm=1.0, process_group=distributed.group.WORLD
    )
    factor = torch.tensor(1.0, device=own_device)
    scaler = torch.amp.GradScaler(device, init_scale=SCALE, growth_interval=2)
    step = train.Step(
        model,
        optimizer,
        loss=lambda model, batch: model(**batch).loss * factor,
        dtype=torch.float16 if device == "cuda" else torch.float32,
        scaler=scaler,
    )
    seen: dict[str, Any] = {"scales": [], "weights": []}
    batch = {key: value[rank::count] for key, value in batches(NAME)[0].items()}
    for number in range(STEPS):
        factor.fill_(math.inf if number == INFINITE and rank == count - 1 else 1.0)
        step(batch)
        seen["scales"].append(scaler.get_scale())
        seen["weights"].append(torch.cat([p.detach().cpu().flatten() for p in model.parameters()]))
    seen["skipped"], seen["replays"] = optimizer.skipped_steps, step.replays
    torch.save(seen, folder / f"{rank}.pt")
    part()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

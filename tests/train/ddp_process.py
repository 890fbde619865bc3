"""One of the processes that train a replaced model together: FOLDER DEVICE KIND.

Each has its half of every batch; a step accumulates two of them. What its gradients were before the
first update, and its weights in the end, goes to FOLDER/RANK.pt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from fusewire.train import Adam, replace
from torch.nn.parallel import DistributedDataParallel

from tests.train.processes import meet, part
from tests.train.tiny_hosted import batch, examples, model_of

HALF, ACCUMULATED, STEPS = 4, 2, 2


def main(folder: Path, device: str, kind: str) -> None:
    rank, count, own_device = meet(device)
    model = replace(model_of(kind).to(own_device), segments=2)
    parallel = DistributedDataParallel(model)
    optimizer = Adam(model.parameters(), lr=1e-3)
    every = iter(examples(count * HALF * ACCUMULATED * STEPS, kind))
    seen: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        for last in (False, True):
            joined = [next(every) for _ in range(count * HALF)]
            own = batch(joined[rank * HALF : (rank + 1) * HALF], own_device)
            parallel.require_backward_grad_sync = last  # as no_sync() sets it
            (parallel(**own).loss / ACCUMULATED).backward()
        if step == 0:
            seen = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    torch.save({"gradients": seen, "weights": model.state_dict()}, folder / f"{rank}.pt")
    part()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

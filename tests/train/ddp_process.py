"""One of two processes that train a replaced model together: RANK FOLDER.

Each has its half of every batch; a step accumulates two of them. What its gradients were before the
first update, and its weights in the end, goes to FOLDER/RANK.pt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from fusewire.train import Adam, replace
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.train.tiny_classifier import batch, classifier, examples

PROCESSES, HALF, ACCUMULATED, STEPS = 2, 4, 2, 2


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=PROCESSES
    )
    model = replace(classifier(), segments=2)
    parallel = DistributedDataParallel(model)
    optimizer = Adam(model.parameters(), lr=1e-3)
    every = iter(examples(PROCESSES * HALF * ACCUMULATED * STEPS))
    seen: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        for last in (False, True):
            joined = [next(every) for _ in range(PROCESSES * HALF)]
            own = batch(joined[rank * HALF : (rank + 1) * HALF])
            parallel.require_backward_grad_sync = last  # as no_sync() sets it
            (parallel(**own).loss / ACCUMULATED).backward()
        if step == 0:
            seen = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    torch.save({"gradients": seen, "weights": model.state_dict()}, folder / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

"""One of the processes that train parameters in bfloat16: FOLDER DEVICE.

Weights of runs that are to be alike go to FOLDER/RANK.pt.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fusewire import train
from fusewire.errors import ConfigurationError
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.train.processes import meet, part
from tests.train.test_bfloat16_parameters import half_of, on
from tests.train.test_step import batches, weights
from tests.train.tiny_models import loss_of

NAME = "BertForMaskedLM"


def main(folder: Path, device: str) -> None:
    rank, count, own_device = meet(device)
    group = distributed.group.WORLD
    seen: dict[str, Any] = {}
    # The same batches everywhere, so the same gradients: what is shared out is the update alone.
    for kind, settings in (("alone", {}), ("sharded", {"process_group": group})):
        model = train.replace(half_of(NAME, own_device), segments=2)
        optimizer = train.Adam(model.parameters(), lr=1e-3, **settings)
        for batch in batches(NAME, 4):
            loss_of(model, on(own_device, batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
        seen[kind] = weights(model).cpu()
    model = train.replace(half_of(NAME, own_device), segments=2)
    optimizer = train.Adam(model.parameters(), lr=1e-3, process_group=group)
    step = train.Step(model, optimizer)
    rows = [{k: v[rank::count].contiguous() for k, v in batch.items()} for batch in batches(NAME)]
    seen["losses"] = [float(step(batch)) for batch in rows]
    seen["step"] = weights(model).cpu()
    parallel = DistributedDataParallel(train.replace(half_of(NAME, own_device)))
    with pytest.raises(ConfigurationError, match="DistributedDataParallel: got parameters in"):
        parallel(**on(own_device, rows[0]))
    torch.save(seen, folder / f"{rank}.pt")
    part()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""One of several processes that share the moments of Adam: FOLDER DEVICE.

Each has its part of every batch. FOLDER has a checkpoint of two steps in begun.pt. Weights after
STEPS steps, of runs that are to be alike, and what was seen of them, go to FOLDER/RANK.pt.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from fusewire.train import Adam, replace, shards
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.train.processes import meet, part
from tests.train.test_adam import groups, network
from tests.train.tiny_hosted import batch, classifier, examples

ROWS, BEGUN, STEPS = 12, 2, 4
CLIP = 0.1  # below the norms of all steps


def adam(model: nn.Module, **settings: Any) -> Adam:
    # Of a key's bias the gradient is rounding alone: eps keeps it from becoming a step.
    return Adam(groups(model), lr=1e-2, eps=1e-4, max_grad_norm=CLIP, **settings)


def train(
    model: nn.Module, optimizer: Adam, steps: Iterable[int], rank: int = 0, count: int = 1
) -> list[float]:
    """The norms of its gradients, over the same batches for any number of processes."""
    norms = []
    device = next(model.parameters()).device
    for step in steps:
        rows = examples(ROWS * (step + 1))[ROWS * step :][rank::count]
        model(**batch(rows, device)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        norms.append(optimizer.gradient_norm)
    return norms


def train_loose(model: nn.Module, optimizer: Adam) -> None:
    """One whose parameters have memory of their own, and not all of them a gradient in each step;
    the same batches in every process."""
    device = next(model.parameters()).device
    for step in range(STEPS):
        x = torch.randn(7, 16, generator=torch.Generator().manual_seed(step))
        model(x.to(device)).square().sum().backward()
        if step == 1:
            model[2].bias.grad = None
        optimizer.step()
        optimizer.zero_grad()


def loose(device: str | torch.device) -> nn.Sequential:
    """Some parameters have fewer elements than there are processes."""
    return nn.Sequential(network(False), nn.LayerNorm(5), nn.Linear(5, 1)).to(device)


def bytes_of_moments(optimizer: Adam) -> int:
    moments = [m for state in optimizer.state.values() for m in state.values() if m.ndim > 0]
    storages = {m.untyped_storage().data_ptr(): m.untyped_storage().nbytes() for m in moments}
    return sum(storages.values())


def main(folder: Path, device: str) -> None:
    rank, count, own_device = meet(device)
    seen: dict[str, Any] = {}

    def parallel(segments: int = 2) -> tuple[nn.Module, nn.Module]:
        model = replace(classifier().to(own_device), segments=segments)
        return model, DistributedDataParallel(model)

    def keep(name: str, model: nn.Module) -> None:
        seen[name] = [p.detach().clone() for p in model.parameters()]

    model, wrapped = parallel()
    train(wrapped, adam(model), range(STEPS), rank, count)
    keep("whole", model)

    gathers, gather = [], shards._all_gather
    shards._all_gather = lambda *a, **k: (gathers.append(1), gather(*a, **k))[1]
    model, wrapped = parallel()
    optimizer = adam(model, process_group=distributed.group.WORLD)
    assert optimizer.state_dict()["state"] == {}
    norms = train(wrapped, optimizer, range(BEGUN), rank, count)
    seen["gathers"] = len(gathers)
    optimizer.consolidate_state_dict()
    if rank == 0:
        torch.save((model.state_dict(), optimizer.state_dict()), folder / "left.pt")
    else:
        seen["elsewhere"] = _error(optimizer.state_dict)
    seen["norms"] = norms + train(wrapped, optimizer, range(BEGUN, STEPS), rank, count)
    seen["stale"] = _error(optimizer.state_dict)
    seen["copied"] = _error(lambda: copy.deepcopy(optimizer))
    seen["grown"] = _error(lambda: optimizer.add_param_group({"params": [nn.Parameter()]}))
    seen["bytes"] = bytes_of_moments(optimizer)
    keep("sharded", model)

    model, wrapped = parallel()
    weights, state = torch.load(folder / "begun.pt", map_location="cpu")
    model.load_state_dict(weights)
    optimizer = adam(model, process_group=distributed.group.WORLD)
    optimizer.load_state_dict(state)
    train(wrapped, optimizer, range(BEGUN, STEPS), rank, count)
    keep("resumed", model)

    model, wrapped = parallel()
    optimizer = adam(model, process_group=distributed.group.WORLD)
    train(wrapped, optimizer, range(1), rank, count)
    wrapped(**batch(examples(ROWS), own_device)).loss.backward()
    if rank == 0:  # in its own part: what others have is finite
        model.bert.embeddings.word_embeddings.weight.grad.fill_(math.nan)
    optimizer.step()
    optimizer.zero_grad()
    seen["skipped"] = optimizer.skipped_steps
    train(wrapped, optimizer, range(1, STEPS), rank, count)
    keep("went on", model)

    model = loose(own_device)
    train_loose(model, adam(model, process_group=distributed.group.WORLD))
    keep("loose", model)
    other = nn.Linear(3, 2 + rank).to(own_device)
    other(torch.ones(3, device=own_device)).sum().backward()
    seen["unlike"] = _error(adam(other, process_group=distributed.group.WORLD).step)
    torch.save(seen, folder / f"{rank}.pt")
    part()


def _error(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return str(error)
    return "none"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

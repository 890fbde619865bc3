"""One of the processes of which torch's FSDP divides parameters: FOLDER DEVICE.

How each way to use it with a replaced model ends goes to FOLDER/RANK.pt, by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fusewire.train import Adam, Step, replace
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers.models.bert.modeling_bert import BertLayer

from tests.train.processes import meet, part
from tests.train.tiny_models import eager, ragged

NAME = "BertForSequenceClassification"


def main(folder: Path, device: str) -> None:
    _, _, own_device = meet(device)
    wrapped = partial(FullyShardedDataParallel, device_id=own_device)
    by_layer = partial(wrapped, auto_wrap_policy=ModuleWrapPolicy({BertLayer}))
    ways: dict[str, Callable[[Any], Any]] = {
        "fully_shard": fully_shard,
        "fully_shard of a head": lambda model: fully_shard(model.classifier) and model,
        "fully_shard of layers": layers_alone,
        "FullyShardedDataParallel": wrapped,
        "FullyShardedDataParallel, parameters of the model": partial(wrapped, use_orig_params=True),
        "FullyShardedDataParallel by layer": by_layer,
    }
    uses = {"forward": forward, "step": step, "replace": replaced}
    seen = {}
    for way, wrap in ways.items():
        for use, call in uses.items():
            model = eager(NAME).to(own_device)
            try:
                call(model, wrap)
                seen[f"{use}, {way}"] = "nothing"
            except Exception as error:
                seen[f"{use}, {way}"] = f"{type(error).__name__}: {error}"
    plain = eager(NAME).to(own_device)
    fully_shard(plain)
    try:
        Adam(plain.parameters())
    except Exception as error:
        seen["Adam"] = f"{type(error).__name__}: {error}"
    rank = torch.distributed.get_rank()
    torch.save(seen, folder / f"{rank}.pt")
    part()


def layers_alone(model: Any) -> Any:
    for layer in model.bert.encoder.layer:
        fully_shard(layer)
    return model


def on_its_device(model: Any) -> dict[str, torch.Tensor]:
    device = next(model.parameters()).device
    return {name: value.to(device) for name, value in ragged(NAME).items()}


def forward(model: Any, wrap: Callable[[Any], Any]) -> None:
    replace(model)
    inputs = on_its_device(model)
    wrap(model)(**inputs)


def step(model: Any, wrap: Callable[[Any], Any]) -> None:
    optimizer = Adam(replace(model).parameters())
    wrap(model)
    Step(model, optimizer)(ragged(NAME))


def replaced(model: Any, wrap: Callable[[Any], Any]) -> None:
    replace(wrap(model))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

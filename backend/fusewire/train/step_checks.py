"""What a `Step` can be made of, and the form of its loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.train.adam import Adam
from fusewire.train.flat import FlatParameters


def check_optimizer(model: torch.nn.Module, optimizer: Adam) -> None:
    """Raises ConfigurationError for an optimizer that is not an Adam, and for one of another
    model."""
    if not isinstance(optimizer, Adam):
        raise ConfigurationError(
            f"optimizer: got {type(optimizer).__name__}, wanted fusewire.train.Adam, which "
            "waits for nothing; or write the step yourself"
        )
    given = [id(p) for group in optimizer.param_groups for p in group["params"]]
    if {id(p) for p in model.parameters()}.isdisjoint(given):
        raise ConfigurationError(
            "optimizer: got parameters of another model alone, wanted those of this "
            f"{type(model).__name__}; make it of model.parameters()"
        )


def parameters_of(flats: Iterable[FlatParameters]) -> list[torch.Tensor | None]:
    """The parameters that the modules have now."""
    slots = (slot for flat in flats for slot in flat.slots)
    return [table.get(name) for slot in slots for table, name in slot.places]


def check_parameters(flats: Iterable[FlatParameters], known: list[torch.Tensor | None]) -> None:
    """Raises ConfigurationError where the modules have other parameters than `known`, which the
    optimizer updates."""
    if [*map(id, parameters_of(flats))] != [*map(id, known)]:
        raise ConfigurationError(
            "model: got other parameters than when the Step was made, as of "
            "load_state_dict(assign=True), wanted those that its optimizer updates; make the "
            "optimizer and the Step anew"
        )


def check_dtype(dtype: torch.dtype | None, device: torch.device) -> None:
    """Raises ConfigurationError for a dtype that layers do not compute in on the device."""
    known = [torch.float32]
    if device.type != "cpu":
        known += [torch.bfloat16, torch.float16]
    if dtype is not None and dtype not in known:
        raise ConfigurationError(
            f"dtype: got {dtype} on {device}, wanted {' or '.join(map(str, known))}; leave it out, "
            "or train on a GPU"
        )


def check_loss(loss: Any) -> None:
    """Raises InvalidInput for anything but a tensor of one element."""
    if not isinstance(loss, torch.Tensor) or loss.ndim > 0:
        shape = f" of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
        raise InvalidInput(
            "loss",
            f"{type(loss).__name__}{shape}",
            "a tensor of one number",
            "give the batch its labels, or Step another `loss`",
        )

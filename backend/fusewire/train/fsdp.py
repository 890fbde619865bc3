"""Refuses parameters that torch divides among processes, as FSDP does: kernels read whole ones."""

from __future__ import annotations

import torch
from torch.nn import Module

from fusewire.errors import Unsupported

# Set by FullyShardedDataParallel and fully_shard in all modules whose parameters they divide.
_MARK = "_is_fsdp_managed_module"


def refuse_fsdp(module: Module) -> None:
    """Raises Unsupported for a module that FSDP manages."""
    if _MARK in module.__dict__:
        raise _unsupported(type(module).__name__)


def refuse_divided(name: str, parameter: torch.Tensor) -> None:
    """Raises Unsupported for a DTensor, as `fully_shard` and tensor parallelism make them."""
    if hasattr(parameter, "placements"):
        raise _unsupported(name)


def _unsupported(what: str) -> Unsupported:
    return Unsupported(
        what,
        "parameters that FSDP (or another user of DTensor) divides among processes",
        "whole ones in each",
        "divide Adam's moments instead, by Adam(process_group=...), in Step or under "
        "DistributedDataParallel",
    )

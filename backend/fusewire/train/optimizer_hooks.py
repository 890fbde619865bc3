"""What any optimizer of torch that steps parameters of a replaced model has to do, or may not."""

from __future__ import annotations

import torch
from torch.autograd.graph import increment_version
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fusewire.errors import ConfigurationError
from fusewire.train.flat import flat_of

# Torch's optimizers that take only gradients of the parameter's dtype, and those that do so if
# fused.
_ONE_DTYPE = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
)
_ONE_DTYPE_FUSED = (torch.optim.SGD, torch.optim.Adagrad)


def _refuse_two_dtypes(optimizer: Optimizer, *_: object) -> None:
    """Raises ConfigurationError where gradients have another dtype than their parameters, and
    torch's optimizer would fail with a message about dtypes alone."""
    for group in optimizer.param_groups:
        fused = isinstance(optimizer, _ONE_DTYPE_FUSED) and group.get("fused")
        if not fused and not isinstance(optimizer, _ONE_DTYPE):
            continue
        for p in group["params"]:
            if p.grad is not None and p.grad.dtype != p.dtype and flat_of(p) is not None:
                name = type(optimizer).__name__ + (" (fused)" if fused else "")
                raise ConfigurationError(
                    f"optimizer: got torch's {name} with parameters in {p.dtype} and gradients in "
                    f"{p.grad.dtype}, wanted fusewire.train.Adam, which rounds stochastically; or "
                    "convert the model with .float() before replace()"
                )


def _count_writes(optimizer: Optimizer, *_: object) -> None:
    """Counts the writes to parameters. Torch's fused optimizers and ours do not count theirs
    (`_version` stays the same), others write through `.data`; the count tells which packed weights
    are outdated."""
    for group in optimizer.param_groups:
        increment_version([p for p in group["params"] if p.grad is not None])
    for flat in getattr(optimizer, "copied", ()):  # our Adam has written their copies too
        flat.copy_was_written()


def register_optimizer_hooks() -> None:
    """For all optimizers of this process. To be called once."""
    register_optimizer_step_pre_hook(_refuse_two_dtypes)
    register_optimizer_step_post_hook(_count_writes)

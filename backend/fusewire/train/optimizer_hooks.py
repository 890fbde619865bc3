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


def _refuse_torchs_adam(optimizer: Optimizer, *_: object) -> None:
    """Raises ConfigurationError where gradients have another dtype than their parameters: torch's
    Adam would fail with a message about dtypes alone."""
    if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and p.grad.dtype != p.dtype and flat_of(p) is not None:
                raise ConfigurationError(
                    f"optimizer: got torch's {type(optimizer).__name__} with parameters in "
                    f"{p.dtype} and gradients in {p.grad.dtype}, wanted fusewire.train.Adam, which "
                    "rounds stochastically; or convert the model with .float() before replace()"
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
    register_optimizer_step_pre_hook(_refuse_torchs_adam)
    register_optimizer_step_post_hook(_count_writes)

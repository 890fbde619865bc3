"""Random weights as models are initialised; needs torch only: vLLM's side runs without fusewire."""

from __future__ import annotations

import torch
from torch import nn

SPREAD = 0.02  # standard deviation


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Fills the parameters. None becomes zero or one, so that leaving one out changes the output.
    Products of numbers as spread as real weights take more power than those of nearly equal ones,
    and so more time."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in model.named_parameters():
        parameter.normal_(0.0, SPREAD, generator=generator)
        if parameter.dim() == 1 and name.endswith("weight"):
            parameter.mul_(5).add_(1)  # weight of a norm

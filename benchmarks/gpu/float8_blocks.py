"""Matrices of FP8 in blocks, as folders of such have them: a scale for each 128 x 128 numbers."""

from __future__ import annotations

from typing import Any

import torch
from fusewire import kernels
from torch import Tensor

from benchmarks.gpu.own import view

BLOCK = 128


def codes_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of [outputs, inputs], both multiples of BLOCK: float8_e4m3fn of the same shape, and scales
    fp32 [outputs / BLOCK, inputs / BLOCK]."""
    blocks = weight.float().unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    scales = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    return codes.reshape(weight.shape), scales


def linear(weight: Tensor, bias: Any, stream: kernels.Stream) -> kernels.Linear:
    codes, scales = codes_of(weight)
    torch.cuda.synchronize()
    there = None if bias is None else view(bias.as_subclass(Tensor))
    stored = view(codes.view(torch.uint8))
    return kernels.Linear(
        stored, there, stream, format="float8_e4m3_blocks", scales=view(scales.contiguous())
    )

"""Matrices of FP8 in blocks, as stored in such folders: a scale for each block of 128 x 128."""

from __future__ import annotations

from typing import Any

import torch
from fusewire import kernels
from torch import Tensor

from benchmarks.gpu.own import view

BLOCK = 128


def codes_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises [outputs, inputs], both multiples of BLOCK. Returns float8_e4m3fn of the same shape
    and fp32 scales [outputs / BLOCK, inputs / BLOCK]."""
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

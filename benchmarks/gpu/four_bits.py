"""Matrices of 4-bit weights, as stored in such folders: symmetric, with a scale for each group of
128 inputs of an output."""

from __future__ import annotations

from typing import Any

import torch
from fusewire import kernels
from torch import Tensor

from benchmarks.gpu.own import view

GROUP = 128


def codes_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises [outputs, inputs]. Returns codes from 0 to 15, which stand for scales * (code - 8),
    as uint8 [outputs, inputs], and fp32 scales [outputs, groups]."""
    parts = weight.float().unflatten(1, (-1, GROUP))
    scales = parts.abs().amax(-1) / 7
    codes = (parts / scales[..., None]).round().add(8).clamp(0, 15).to(torch.uint8)
    return codes.flatten(1), scales


def rounded(weight: Tensor) -> Tensor:
    """Returns the weight after quantisation and dequantisation; quantised again, it has the same
    codes."""
    codes, scales = codes_of(weight)
    numbers = (codes.unflatten(1, (-1, GROUP)).float() - 8) * scales[..., None]
    return numbers.flatten(1).to(weight.dtype)


def linear(weight: Tensor, bias: Any, stream: kernels.Stream) -> kernels.Linear:
    codes, scales = codes_of(weight)
    nibbles = codes[:, ::2] | codes[:, 1::2] << 4
    torch.cuda.synchronize()
    there = None if bias is None else view(bias.as_subclass(Tensor))
    return kernels.Linear.of_int4(view(nibbles), view(scales), None, there, stream)

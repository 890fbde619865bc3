"""Rows and weights in the float8_e4m3 formats, quantised by torch."""

from __future__ import annotations

import numpy as np
import torch

LARGEST = 448.0
BLOCK = 128

Rounded = tuple[torch.Tensor, torch.Tensor]  # codes, and scales that broadcast over them


def rounded_rows(array: np.ndarray) -> Rounded:
    """Quantises each row by its own largest magnitude."""
    rows = torch.from_numpy(array).float()
    top = rows.abs().amax(1, keepdim=True).clamp_min(1e-30)
    inverse = torch.tensor(LARGEST) / top
    return (rows * inverse).to(torch.float8_e4m3fn), top / LARGEST


def rounded_with(array: np.ndarray, scale: float) -> Rounded:
    """Quantises all rows by one scale; larger values saturate."""
    rows = torch.from_numpy(array).float() * (torch.tensor(1.0) / torch.tensor(scale))
    codes = rows.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return codes, torch.tensor(scale).expand(len(array), 1)


def rounded_blocks(array: np.ndarray) -> Rounded:
    """Quantises each BLOCK of a row separately."""
    parts = [rounded_rows(array[:, at : at + BLOCK]) for at in range(0, array.shape[1], BLOCK)]
    codes = torch.cat([part[0].view(torch.uint8) for part in parts], 1)
    scales = torch.cat([part[1].expand_as(part[0]) for part in parts], 1)
    return codes.view(torch.float8_e4m3fn), scales


def exactly(rows: Rounded) -> np.ndarray:
    return (rows[0].double() * rows[1].double()).numpy()


def blocks_of(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a weight's codes and the scales of its blocks [rows / BLOCK, columns / BLOCK]."""
    grid = tuple(-(-size // BLOCK) for size in weight.shape)
    codes, scales = np.empty(weight.shape, np.uint8), np.empty(grid, np.float32)
    for i, j in np.ndindex(*grid):
        at = tuple(slice(b * BLOCK, (b + 1) * BLOCK) for b in (i, j))
        values = torch.from_numpy(weight[at].copy()).float()
        scales[i, j] = max(float(values.abs().max()), 1e-30) / LARGEST
        scaled = (values / float(scales[i, j])).to(torch.float8_e4m3fn)
        codes[at] = scaled.view(torch.uint8).numpy()
    return codes, scales


def of_blocks(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Returns the values of the codes."""
    factors = scales.astype(np.float64).repeat(BLOCK, 0).repeat(BLOCK, 1)
    numbers = torch.from_numpy(codes).view(torch.float8_e4m3fn).double().numpy()
    return numbers * factors[: codes.shape[0], : codes.shape[1]]

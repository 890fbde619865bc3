"""Positions of a grid of patches are resampled as in transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.models.patch_positions import resampled

from tests.tolerance import RESAMPLED_POSITION


@pytest.mark.parametrize("side", [1, 2, 7, 14])
@pytest.mark.parametrize("wanted", [(1, 1), (14, 14), (7, 14), (3, 29), (37, 16)])
def test_positions_are_resampled_as_torch_does(side, wanted):
    grid = np.random.default_rng(0).standard_normal((side, side, 5), np.float32)
    theirs = torch.nn.functional.interpolate(
        torch.from_numpy(grid).permute(2, 0, 1)[None],
        size=wanted,
        mode="bicubic",
        align_corners=False,
    )[0].permute(1, 2, 0)
    np.testing.assert_allclose(
        resampled(grid, *wanted), theirs.numpy(), rtol=0, atol=RESAMPLED_POSITION
    )

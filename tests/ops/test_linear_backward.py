"""The gradient of a weight on a GPU: sums and result are fp32, whatever the type of the input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.placement import Placement

from tests.ops.case import LAYOUTS, Operands
from tests.ops.check import inputs, tensors
from tests.ops.linear_gradients import CASES, GPU_WEIGHTS, WEIGHTS
from tests.places import GPU
from tests.tolerance import allowed_error

CASE = CASES["linear_backward_weight"]


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("shape", [*WEIGHTS, *GPU_WEIGHTS], ids=str)
def test_sums_are_made_and_kept_in_fp32(shape: tuple, place: Placement):
    arrays = inputs(CASE, shape, place.dtype)  # `before`, too, is of numbers that the type holds
    truth, same = (
        CASE.reference(tensors(arrays, dtype, place.device), shape).double().cpu().numpy()
        for dtype in (torch.float64, torch.float32)
    )
    allowed = allowed_error(truth, same, "float32", max(1, shape[0]))
    for layout in LAYOUTS:
        excess = allowed.excess(CASE.ours(Operands(place, layout), arrays, shape))
        assert not excess, f"{layout}: {excess}"


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("shape", [(4096, 64, 64, True), (3001, 768, 768, False)], ids=str)
def test_bits_do_not_depend_on_the_run(shape: tuple, place: Placement):
    o, arrays = Operands(place, "dense"), inputs(CASE, shape, place.dtype)
    wanted = CASE.ours(o, arrays, shape)
    for _ in range(5):
        np.testing.assert_array_equal(CASE.ours(o, arrays, shape), wanted)

"""The gradient of a weight on a GPU: sums and result are fp32, whatever the input's dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.placement import Placement

from tests.ops.case import LAYOUTS, Operands
from tests.ops.check import inputs, tensors
from tests.ops.linear_gradients import CASES, GPU_WEIGHTS, WEIGHTS
from tests.places import GPU
from tests.tolerance import allowed_error, cut_off_sums

CASE = CASES["linear_backward_weight"]


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("shape", [*WEIGHTS, *GPU_WEIGHTS], ids=str)
def test_sums_are_made_and_kept_in_fp32(shape: tuple, place: Placement):
    rows = shape[0]
    arrays = inputs(CASE, shape, place.dtype)  # `before`, too, has values of this type
    exact = CASE.reference(tensors(arrays, torch.float64, place.device), shape)
    truth = exact.double().cpu().numpy()
    if place.dtype == "float32":
        by_torch = CASE.reference(tensors(arrays, torch.float32, place.device), shape)
        allowed = allowed_error(truth, by_torch.cpu().numpy(), "float32", max(1, rows))
    for layout in LAYOUTS:
        got = CASE.ours(Operands(place, layout), arrays, shape)
        if place.dtype == "float32":
            excess = allowed.excess(got)
            assert not excess, f"{layout}: {excess}"
        else:
            assert np.abs(got - truth).max() <= cut_off_sums(truth, rows), layout


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("shape", [(4096, 64, 64, True), (3001, 768, 768, False)], ids=str)
def test_bits_do_not_depend_on_the_run(shape: tuple, place: Placement):
    o, arrays = Operands(place, "dense"), inputs(CASE, shape, place.dtype)
    wanted = CASE.ours(o, arrays, shape)
    for _ in range(5):
        np.testing.assert_array_equal(CASE.ours(o, arrays, shape), wanted)

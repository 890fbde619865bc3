"""Checks one row of the table of ops against its reference."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from fusewire.placement import Placement

from tests.ops.case import LAYOUTS, Arrays, Case, Operands, Tensors
from tests.places import TORCH_DTYPES, rounded
from tests.tolerance import Allowed, allowed_error


def tensors(arrays: Arrays, dtype: torch.dtype, device: str) -> Tensors:
    moved = {name: torch.from_numpy(a).to(device) for name, a in arrays.items()}
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in moved.items()}


def longest(arrays: Arrays) -> int:
    """Returns the largest size of the inputs, an upper bound of the terms of an op's sums."""
    return max(size for array in arrays.values() for size in array.shape)


def inputs(case: Case, shape: tuple, dtype: str) -> Arrays:
    """Returns new inputs at each call, as an op may write to them."""
    return {
        name: array if name in case.fp32 else rounded(array, dtype)
        for name, array in case.make(np.random.default_rng(0), shape).items()
    }


@lru_cache(maxsize=64)  # the same for every instruction set and every wrong kernel
def expected(
    case: Case, shape: tuple, dtype: str, device: str
) -> tuple[np.ndarray, Allowed | None]:
    """Returns the op's result in fp64, and the allowed error of a result in `dtype`."""
    arrays = inputs(case, shape, dtype)
    truth = case.reference(tensors(arrays, torch.float64, device), shape).cpu().numpy()
    if case.exact or not truth.size:
        return truth, None
    same = case.reference(tensors(arrays, TORCH_DTYPES[dtype], device), shape)
    return truth, allowed_error(truth, same.double().cpu().numpy(), dtype, longest(arrays))


def check(
    case: Case,
    shape: tuple,
    place: Placement,
    layouts: tuple[str, ...] = LAYOUTS,
    rounding: str = "",
) -> None:
    """Checks an op in each layout. `rounding`: a 16-bit type to which the inputs are rounded, and
    the result of kernels that compute in fp32, which emulates a kernel for this type that rounds
    once."""
    dtype = rounding or place.dtype
    arrays = inputs(case, shape, dtype)
    truth, allowed = expected(case, shape, dtype, place.device)
    for layout in layouts:
        got = case.ours(Operands(place, layout), arrays, shape)
        if allowed is None:
            np.testing.assert_array_equal(got, truth, f"{layout} {shape}")
        else:
            excess = allowed.excess(rounded(got, dtype) if rounding else got)
            assert not excess, f"{layout} {shape}: {excess}"

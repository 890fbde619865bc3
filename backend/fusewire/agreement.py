"""How far results may be from those of transformers, and how far they are.

In fp32 within an absolute difference, where results are large within a share of the largest: they
are rounded by that. In 16 bits within twice the difference that transformers has in the same
precision from itself in fp32, and some rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Results = dict[str, NDArray[np.float32]]  # of one sequence, by name

_FP32 = 1e-4
_FP32_SHARE = 2.0**-16
_VERSUS_TRANSFORMERS = 2.0
_ROUNDING_ULPS = 4  # units in the last place of the largest result
_MANTISSA_BITS = {"float16": 10, "bfloat16": 7}


def differences(got: Sequence[Results], truth: Sequence[Results]) -> dict[str, float]:
    """The largest by name; NaN where there is one on either side."""
    pairs = list(zip(got, truth, strict=True))
    return {  # not max(): a NaN must come through
        name: float(np.max([np.abs(ours[name] - theirs[name]).max() for ours, theirs in pairs]))
        for name in truth[0]
    }


def allowed_differences(
    truth: Sequence[Results], dtype: str, rounded: Callable[[], Sequence[Results]]
) -> dict[str, float]:
    """The largest difference that passes, by name. `truth`: what transformers computes in fp32;
    `rounded`: the same in `dtype`, asked for only where that is of 16 bits."""
    zeros = [{name: np.zeros_like(values) for name, values in each.items()} for each in truth]
    largest = _measured(truth, zeros)
    if dtype == "float32":
        return {name: max(_FP32, _FP32_SHARE * most) for name, most in largest.items()}
    errors = _measured(rounded(), truth)
    allowed = {}
    for name, most in largest.items():
        ulp = math.ldexp(1.0, math.frexp(most)[1] - 1 - _MANTISSA_BITS[dtype])
        allowed[name] = _VERSUS_TRANSFORMERS * errors[name] + _ROUNDING_ULPS * ulp
    return allowed


def _measured(got: Sequence[Results], truth: Sequence[Results]) -> dict[str, float]:
    """Differences to measure others by: 0 where numbers were left, as fp16 has it early."""
    found = differences(got, truth)
    return {name: worst if math.isfinite(worst) else 0.0 for name, worst in found.items()}

"""How much of a difference from transformers is allowed, and no more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.agreement import allowed_differences, differences

from tests import tolerance
from tests.places import TORCH_DTYPES

SCALES = [1.0, 30.0, 1000.0]


def logits(scale: float) -> list[dict[str, np.ndarray]]:
    """Of two sequences."""
    random = np.random.default_rng(0)
    return [
        {"logits": (scale * random.standard_normal((5, 131))).astype(np.float32)} for _ in range(2)
    ]


def in_dtype(results: list[dict[str, np.ndarray]], dtype: str, times: float = 1.0):
    """Rounded, and off by so many times what rounding makes of them."""
    off = []
    for each in results:
        exact = torch.from_numpy(each["logits"])
        rounded = exact.to(TORCH_DTYPES[dtype]).float()
        off.append({"logits": (exact + times * (rounded - exact)).numpy()})
    return off


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_16_bits_twice_the_error_of_transformers_is_allowed_and_rounding(dtype, scale):
    truth = logits(scale)
    theirs = in_dtype(truth, dtype, times=40)
    allowed = allowed_differences(truth, dtype, lambda: theirs)["logits"]
    largest = max(float(np.abs(each["logits"]).max()) for each in truth)
    assert allowed == 2 * differences(theirs, truth)["logits"] + 4 * tolerance.ulp(largest, dtype)
    assert differences(in_dtype(truth, dtype, times=80), truth)["logits"] <= allowed
    assert differences(in_dtype(truth, dtype, times=100), truth)["logits"] > allowed


def test_in_fp32_large_results_may_differ_by_their_rounding():
    def never():
        raise AssertionError

    for scale in SCALES:
        truth = logits(scale)
        largest = max(float(np.abs(each["logits"]).max()) for each in truth)
        allowed = allowed_differences(truth, "float32", never)["logits"]
        assert allowed == max(tolerance.MODEL_FP32, largest * 2.0**-16)
        near = [{"logits": each["logits"] + np.float32(0.9 * allowed)} for each in truth]
        far = [{"logits": each["logits"] + np.float32(1.1 * allowed)} for each in truth]
        assert differences(near, truth)["logits"] <= allowed
        assert differences(far, truth)["logits"] > allowed


@pytest.mark.parametrize("what", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_never_agrees(what):
    truth = logits(1.0)
    wrong = [{"logits": each["logits"].copy()} for each in truth]
    wrong[1]["logits"][2, 3] = what
    for dtype in ("float32", "float16", "bfloat16"):
        # Not even where transformers has it too.
        assert (
            not differences(wrong, truth)["logits"]
            <= allowed_differences(truth, dtype, lambda: wrong)["logits"]
        )
        assert (
            not differences(truth, wrong)["logits"]
            <= allowed_differences(wrong, dtype, lambda: truth)["logits"]
        )

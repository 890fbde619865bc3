"""How far results are from a reference's, how much of a difference is allowed, and no more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.parity import agreement
from fusewire.parity.agreement import Allowance, Differences

from tests import tolerance
from tests.places import TORCH_DTYPES

SCALES = [1.0, 30.0, 1000.0]
Sequences = list[dict[str, np.ndarray]]


def logits(scale: float) -> Sequences:
    """Of two sequences."""
    random = np.random.default_rng(0)
    return [
        {"logits": (scale * random.standard_normal((5, 131))).astype(np.float32)} for _ in range(2)
    ]


def in_dtype(results: Sequences, dtype: str, times: float = 1.0) -> Sequences:
    """Rounded, and off by so many times what rounding makes of them."""
    off = []
    for each in results:
        exact = torch.from_numpy(each["logits"])
        rounded = exact.to(TORCH_DTYPES[dtype]).float()
        off.append({"logits": (exact + times * (rounded - exact)).numpy()})
    return off


def difference(got: Sequences, truth: Sequences) -> agreement.Difference:
    total = Differences()
    for ours, theirs in zip(got, truth, strict=True):
        total.add(ours, theirs)
    return total.found()["logits"]


def allowed_difference(truth: Sequences, dtype: str, rounded: Sequences | None = None) -> float:
    allowance = Allowance(dtype)
    for theirs, near in zip(truth, rounded or [None, None], strict=True):
        allowance.add(theirs, near)
    return allowance.allowed()["logits"]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_16_bits_twice_the_error_of_transformers_is_allowed_and_rounding(dtype, scale):
    truth = logits(scale)
    theirs = in_dtype(truth, dtype, times=40)
    allowed = allowed_difference(truth, dtype, theirs)
    largest = max(float(np.abs(each["logits"]).max()) for each in truth)
    error = difference(theirs, truth).largest
    assert allowed == 2 * error + 4 * tolerance.ulp(largest, dtype)
    assert difference(in_dtype(truth, dtype, times=80), truth).largest <= allowed
    assert difference(in_dtype(truth, dtype, times=100), truth).largest > allowed


def test_in_fp32_large_results_may_differ_by_their_rounding():
    for scale in SCALES:
        truth = logits(scale)
        largest = max(float(np.abs(each["logits"]).max()) for each in truth)
        allowed = allowed_difference(truth, "float32")
        assert allowed == max(tolerance.MODEL_FP32, largest * 2.0**-16)
        near = [{"logits": each["logits"] + np.float32(0.9 * allowed)} for each in truth]
        far = [{"logits": each["logits"] + np.float32(1.1 * allowed)} for each in truth]
        assert difference(near, truth).largest <= allowed
        assert difference(far, truth).largest > allowed


@pytest.mark.parametrize("what", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_never_agrees(what):
    truth = logits(1.0)
    wrong = [{"logits": each["logits"].copy()} for each in truth]
    wrong[1]["logits"][2, 3] = what
    for dtype in ("float32", "float16", "bfloat16"):
        # Not even where transformers has it too.
        assert not difference(wrong, truth).largest <= allowed_difference(truth, dtype, wrong)
        assert not difference(truth, wrong).largest <= allowed_difference(wrong, dtype, truth)
        assert not difference(wrong, wrong).largest <= allowed_difference(wrong, dtype, wrong)


@pytest.mark.parametrize("at_once", [1 << 22, 131, 300, 1])
def test_differences_and_cosines_are_those_of_fp64_over_all_rows(monkeypatch, at_once):
    monkeypatch.setattr(agreement, "_NUMBERS", at_once)
    truth = logits(3.0)
    got = in_dtype(truth, "bfloat16", times=7)
    got[1]["logits"], truth[1]["logits"] = got[1]["logits"][:3], truth[1]["logits"][:3]
    ours, theirs = (
        np.concatenate([each["logits"] for each in side]).astype(np.float64)
        for side in (got, truth)
    )
    cosines = torch.cosine_similarity(torch.from_numpy(ours), torch.from_numpy(theirs)).numpy()
    assert len(cosines) == 8
    found = difference(got, truth)
    assert found.largest == np.abs(ours - theirs).max()
    assert found.mean == pytest.approx(np.abs(ours - theirs).mean(), rel=1e-12)
    assert found.mean_cosine == pytest.approx(cosines.mean(), abs=1e-12)
    assert found.least_cosine == pytest.approx(cosines.min(), abs=1e-12)
    assert found.least_cosine < found.mean_cosine < 1


def test_rows_of_zeros_are_alike_and_like_nothing_else():
    zeros, ones = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    assert difference([{"logits": zeros}], [{"logits": zeros}]).least_cosine == 1
    assert difference([{"logits": zeros}], [{"logits": ones}]).least_cosine == 0
    assert difference([{"logits": -ones}], [{"logits": ones}]).least_cosine == -1


def test_results_of_another_shape_are_never_compared():
    with pytest.raises(ValueError, match=r"got shape \[131, 5\], wanted \[5, 131\]"):
        difference([{"logits": each["logits"].T} for each in logits(1.0)], logits(1.0))

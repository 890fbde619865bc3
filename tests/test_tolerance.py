"""Which errors `allowed_error` accepts, and which it rejects."""

from __future__ import annotations

import numpy as np
import pytest

from tests.places import rounded
from tests.tolerance import Allowed, allowed_error, roundoff

RNG = np.random.default_rng(0)
# Rows of the order of 1, of a thousandth of it, and of zeros.
ROWS = RNG.standard_normal((3, 400)) * np.array([[1.0], [1e-3], [0.0]])


def once(truth: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds once to the dtype."""
    return rounded(truth.astype(np.float32), dtype).astype(np.float64)


def allowed(truth: np.ndarray, dtype: str) -> Allowed:
    """Returns the allowed error where torch rounds once."""
    return allowed_error(truth, once(truth, dtype), dtype, terms=400)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_row_is_held_to_its_own_scale(dtype: str):
    right = once(ROWS, dtype)
    assert not allowed(ROWS, dtype).excess(right)
    for row, scale in ((0, 1.0), (1, 1e-3)):
        wrong = right.copy()
        wrong[row, ::2] += 10 * roundoff(dtype) * scale + 1e-5 * scale
        assert f"[{row}, " in allowed(ROWS, dtype).excess(wrong)
    assert not allowed(ROWS, dtype).rows(slice(1, 3)).excess(right[1:3])
    assert allowed(ROWS, dtype).rows(slice(1, 2)).excess(right[:1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_element_may_be_rounded_twice(dtype: str):
    off = 1.9 * roundoff(dtype) * np.abs(ROWS)
    assert not allowed(ROWS, dtype).excess(ROWS + off)
    assert "element" in allowed(ROWS, dtype).excess(ROWS + 2 * off)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_twice_the_error_of_torch_is_allowed(dtype: str):
    scale = 40 * roundoff(dtype) * np.array([[1.0], [1e-3]])
    error = scale * RNG.standard_normal(ROWS[:2].shape)
    bound = allowed_error(ROWS[:2], ROWS[:2] + error, dtype, terms=400)
    assert not bound.excess(ROWS[:2] - 2 * error)
    # No element has a larger error than torch's worst, but all of them have such an error.
    assert "root mean square" in bound.excess(ROWS[:2] + 2.5 * scale)


def test_narrow_rows_share_their_scale():
    """One of two values may be near zero by chance."""
    truth = np.array([[3.0, -2.0], [1e-6, -1e-6], [1.0, 4.0]])
    bound = allowed_error(truth, truth, "float32", terms=400)
    assert not bound.excess(truth + 1e-7)
    assert bound.excess(truth + 1e-4)


def test_what_is_no_number_or_of_another_shape_is_never_allowed():
    for wrong in (np.nan, np.inf):
        got = ROWS.copy()
        got[1, 2] = wrong
        assert "not finite" in allowed(ROWS, "float16").excess(got)
    assert "shape" in allowed(ROWS, "float16").excess(ROWS[:2])


def test_where_torch_overflows_nothing_more_is_allowed():
    beyond = once(ROWS, "float16")
    beyond[0, 0] = np.inf
    bound = allowed_error(ROWS, beyond, "float16", terms=400)
    np.testing.assert_array_equal(bound.rms, allowed(ROWS, "float16").rms)

"""Every tolerance of the test suite. Loosening one requires a comment with the reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# fp32 hidden states and logits against transformers eager, maximum absolute difference.
MODEL_FP32 = 1e-4

# Ratio of root mean square errors of logits: a model whose layers' weights have 4 bits, to the same
# dequantised to 16 bits. The weights are the same or rounded less; sums have another order.
INT4_VERSUS_DEQUANTISED = 1.5

# Log-mel features against transformers' extractor in numpy, which computes in float64 and returns
# float32, and in torch, which computes in float32: values far below the loudest have few digits.
LOG_MEL = 1e-6
LOG_MEL_FLOAT32 = 1e-4

# The same request, alone and in a batch: bitwise equal in fp32 on the CPU.
BATCHED_VERSUS_ALONE = 0.0

# The same on a GPU, in fp32, where results are of the order of 1: a GEMM with another number of
# rows uses another kernel, which accumulates in another order. Results of a whole model differ by
# no more than each of them is allowed (`allowed_error`), in any precision: logits of 18 have
# rounding errors of 1.6e-5 in transformers itself (fp32 against fp64, the smallest ModernBERT).
GPU_BATCHED_VERSUS_ALONE = 1e-5

# An op, a layer or a 16-bit model against its reference: at most this many times the error of torch
# in the same precision on the same device and input, plus the terms below (`allowed_error`).
OP_VERSUS_TORCH = 2.0

# Roundings to the element type that a kernel needs: its result, and one intermediate result (the
# probabilities of attention, a sum before its norm). Torch's error may be small by chance in both.
ROUNDINGS = 2

# The error of fp32 inside a kernel besides its sums, in roundoffs of fp32: a score of 16 has its
# own rounding error, which is the relative error of its exponential.
SINGLE = 16

# Sums of n terms are accumulated in fp32, in any order. A sum that grows by random terms and is
# rounded at every step has an error of 0.3 sqrt(n) roundoffs of itself (n steps, errors of random
# sign, uniform in half a unit of partial sums that grow as sqrt(i)). Twice that, because terms have
# a mean.
SUM = 0.6

# Narrower rows do not estimate their scale, because all elements may be near zero by chance.
NARROW = 16

# Cosine and sine of equal fp32 angles: their last two bits depend on the library.
COSINE = 2.5e-7

# Positions of the order of 1 after bicubic resampling: 16 products in another order.
RESAMPLED_POSITION = 4e-6

# Gradients of the demo's translator, in fp32 by numpy, against fp64: the norm of the difference
# over that of the gradient. Sums of some dozens of terms through eight norms.
NUMPY_GRADIENT = 1e-5

# Gradients of a layer in fp32 against fp64: the norm of the difference over that of the gradient.
# Sums of up to 200 terms, through two norms and a softmax.
TRAINED_GRADIENT = 5e-6

# Loss and gradients of a replaced model against transformers eager, both in fp32: of the loss and
# of each parameter's gradient the norm of the difference over that of the gradient.
TRAINED_VERSUS_EAGER = 1e-4

# Weights of the order of 1 after a hundred steps of Adam at rates up to 1e-2, against torch's. An
# update divides by the root of a second moment, so a rounding error of a small gradient is a
# relative one of the update, 1e-7 of 1e-2, and later updates have other gradients.
TRAINED_WEIGHT = 2e-5

# How far the loss falls in 200 steps with parameters in bfloat16, rounded stochastically, against
# fp32 ones: relative. The noise of rounding moves the loss by some 0.5 %.
BFLOAT16_FALL = 0.02

# Scores that a pipeline returns (softmax outputs, probabilities).
PIPELINE_SCORE = 1e-5

# LayerNorm of rows with mean 1e4 and deviation 0.1: the mean itself, rounded to fp32 (half a unit
# of 1e4 is 4.9e-4), has an error of this fraction of a deviation; torch's own error is measured
# too.
LARGE_MEAN = 5e-3

# The planned peak of a workspace over the liveness lower bound.
PEAK_OVER_BOUND = 1.05

# Memory of captured training steps of many sizes over that of the largest alone: what torch splits
# for one size it cannot always merge again for another.
PEAK_OF_ALL_BUCKETS = 1.25

# Tokens that captured forwards compute in addition to those of the requests, over a mixed workload.
PADDING_SHARE = 0.06

# Bits of the mantissa, and the exponent below which an element type has subnormal values.
_PRECISION = {"float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}


def ulp(value: float, dtype: str) -> float:
    """Returns the unit in the last place of a value in an element type."""
    bits, least = _PRECISION[dtype]
    exponent = math.frexp(value)[1] - 1 if value else least
    return math.ldexp(1.0, max(exponent, least) - bits)


def roundoff(dtype: str) -> float:
    """Returns half a unit in the last place of 1: the relative error of rounding to the element
    type."""
    return math.ldexp(0.5, -_PRECISION[dtype][0])


@dataclass(frozen=True)
class Allowed:
    """The allowed error of a result: of each row by its root mean square error, and of each
    element. Both scale with the row, not with the largest value of all, so that values that are
    small compared with other rows, or (where torch rounds once) with other elements of their row,
    are checked too."""

    truth: NDArray[np.float64]  # [..., cols]; an array without columns is one row
    rms: NDArray[np.float64]  # [..., 1]
    elements: NDArray[np.float64]  # [..., cols]

    def excess(self, got: NDArray[Any]) -> str:
        """Describes the largest excess of a result over the allowed error; empty where there is
        none."""
        if got.shape != self.truth.shape:
            return f"got shape {got.shape}, wanted {self.truth.shape}"
        off = np.abs(got - self.truth)
        if not np.isfinite(off).all():
            return f"got {np.count_nonzero(~np.isfinite(off))} numbers that are not finite"
        for name, error, allowed in (
            ("element", off, self.elements),
            ("root mean square of the row at", _rms(off), self.rms),
        ):
            if (error > allowed).any():
                at = np.unravel_index(np.argmax(error / allowed), error.shape)
                where = f"{name} {[int(i) for i in at]}"
                return f"{where}: off by {error[at]:.3g}, allowed are {allowed[at]:.3g}"
        return ""

    def plus(self, rms: NDArray[np.float64], elements: NDArray[np.float64]) -> Allowed:
        """Returns the allowed error increased by these."""
        return Allowed(self.truth, self.rms + rms, self.elements + elements)

    def rows(self, rows: slice) -> Allowed:
        """Returns the allowed error of some rows."""
        return Allowed(self.truth[rows], self.rms[rows], self.elements[rows])


def allowed_error(
    truth: NDArray[np.float64], torch_result: NDArray[Any], dtype: str, terms: int
) -> Allowed:
    """Returns the allowed error of a result, from the truth (fp64) and from torch's result in the
    same element type. `terms`: those of the longest sum for an element.

    Errors are in units of s, the root mean square of a row's values. A row's root mean square error
    may be OP_VERSUS_TORCH times that of torch in its worst row (which row is the worst is chance:
    in attention one score may decide it), plus ROUNDINGS roundoffs. An element's error may be
    OP_VERSUS_TORCH times the largest that torch has beyond the rounding of its result, plus
    ROUNDINGS roundoffs of the element. Both may have the additional error of fp32 inside a kernel.
    """
    torch_error = np.abs(torch_result - truth)
    torch_error[~np.isfinite(torch_error)] = 0.0  # torch exceeded the range of fp16
    scale = _rms(truth)
    if truth.shape[-1] < NARROW:
        scale = np.full_like(scale, math.sqrt(np.mean(truth**2)))
    single = (SINGLE + SUM * math.sqrt(terms)) * roundoff("float32") * scale

    def rounding(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the rounding error of values of these sizes; the smallest values of the type are
        ulp(0) apart."""
        return roundoff(dtype) * sizes + ulp(0.0, dtype)

    once = rounding(np.abs(truth))
    rms = OP_VERSUS_TORCH * _largest(_rms(torch_error), scale) * scale
    elements = OP_VERSUS_TORCH * _largest(np.maximum(torch_error - once, 0.0), scale) * scale
    return Allowed(
        truth, rms + ROUNDINGS * rounding(scale) + single, elements + ROUNDINGS * once + single
    )


def turned_codes(
    truth: NDArray[np.float64], torch_result: NDArray[Any], dtype: str, terms: int
) -> Allowed:
    """`allowed_error` of a model whose keys and values are rounded to e4m3. Errors of 16 bits
    before that may change a code to its neighbour, up to an eighth of the value away. Which rows
    have such a code, ours or torch's, is chance, so the allowed error of each row and element is
    doubled."""
    once = allowed_error(truth, torch_result, dtype, terms)
    return once.plus(once.rms, once.elements)


def cut_off_sums(truth: NDArray[np.float64], terms: int) -> float:
    """Returns the allowed error of sums of products of 16-bit values on tensor cores, which add 16
    terms at a time to fp32 and truncate: the last place of the largest sum each time. Keeping sums
    of more than some hundred terms in 16 bits has a larger error."""
    return (terms / 16 + 2) * 2 * roundoff("float32") * float(np.abs(truth).max())


def float8_sums(sums: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the allowed error of sums of random products of e4m3: the root mean square of each
    row, and each element. Tensor cores add 32 products at a time and keep 13 fraction bits relative
    to the largest of them (DeepSeek-V3, section 3.3.2), which is some 6 times the root mean square
    p of all. The truncated part is uniform, of random sign: for n products 2^-13 * 6 p * sqrt(n /
    3), while the sums are sqrt(n) p. The largest of a million errors is 5 times their root mean
    square."""
    rms = 4 * 2.0**-13 * _rms(sums)
    return rms, 5 * rms


def _largest(errors: NDArray[np.float64], scale: NDArray[np.float64]) -> float:
    """Returns the largest error, in units of the scale of each row."""
    return float(np.divide(errors, scale, out=np.zeros_like(errors), where=scale > 0).max())


def _rms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sqrt(np.mean(rows**2, axis=-1, keepdims=True))

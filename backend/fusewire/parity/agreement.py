"""Measures how much results differ from those of a reference, and how much they may differ.

By default the limit in fp32 is an absolute difference, or for large results a share of the largest,
as they are rounded accordingly. In 16 bits it is twice the difference between transformers in the
same precision and transformers in fp32, plus some rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Results = dict[str, NDArray[np.float32]]  # of one sequence, by name
Rows = NDArray[np.float64]  # [rows, values]

_FP32 = 1e-4
_FP32_SHARE = 2.0**-16
_VERSUS_TRANSFORMERS = 2.0
_ROUNDING_ULPS = 4  # units in the last place of the largest result
_MANTISSA_BITS = {"float16": 10, "bfloat16": 7}
_NUMBERS = 1 << 22  # elements of a result that are widened to fp64 at a time


@dataclass(frozen=True)
class Difference:
    """The difference of one result from the reference's, over all sequences; NaN if either side has
    one. A row is a vector along the result's last axis: an embedding, a token's hidden state, the
    logits of a position."""

    largest: float  # absolute
    mean: float  # absolute
    mean_cosine: float  # of each row with the reference's
    least_cosine: float


class Differences:
    """Accumulates the differences of results, a sequence at a time."""

    def __init__(self) -> None:
        self._of: dict[str, _Sums] = {}

    def add(self, got: Results, truth: Results) -> None:
        """Adds the results of one sequence; `truth` may have results that `got` lacks."""
        for name, values in got.items():
            sums = self._of.setdefault(name, _Sums())
            for ours, theirs in pieces(values, truth[name]):
                sums.add(ours, theirs)

    def found(self) -> dict[str, Difference]:
        """Returns the differences by the result's name."""
        return {name: sums.difference() for name, sums in self._of.items()}


class Allowance:
    """The largest difference that passes, by the result's name."""

    def __init__(self, dtype: str) -> None:
        """`dtype`: the data type of our computation."""
        self._dtype = dtype
        self._largest: dict[str, float] = {}
        self._errors: dict[str, float] = {}

    def add(self, truth: Results, rounded: Results | None) -> None:
        """Adds the results of one sequence. `truth`: those of transformers in fp32. `rounded`:
        those of transformers in the dtype, if it has 16 bits."""
        for name, values in truth.items():
            _raise(self._largest, name, np.abs(values).max())
            if rounded is not None:
                with np.errstate(invalid="ignore"):  # both sides may be infinite
                    _raise(self._errors, name, np.abs(rounded[name] - values).max())

    def allowed(self) -> dict[str, float]:
        # Limits measured with infinite or NaN results, as fp16 soon has them, mean nothing.
        largest = {name: _or_0(most) for name, most in self._largest.items()}
        if self._dtype == "float32":
            return {name: max(_FP32, _FP32_SHARE * most) for name, most in largest.items()}
        allowed = {}
        for name, most in largest.items():
            ulp = math.ldexp(1.0, math.frexp(most)[1] - 1 - _MANTISSA_BITS[self._dtype])
            error = _or_0(self._errors[name])
            allowed[name] = _VERSUS_TRANSFORMERS * error + _ROUNDING_ULPS * ulp
        return allowed


def pieces(got: NDArray[Any], truth: NDArray[Any]) -> Iterator[tuple[Rows, Rows]]:
    """Yields the rows of both in fp64, some at a time: logits over a vocabulary are large."""
    if got.shape != truth.shape:
        raise ValueError(f"results: got shape {list(got.shape)}, wanted {list(truth.shape)}")
    width = got.shape[-1]
    ours, theirs = got.reshape(-1, width), truth.reshape(-1, width)
    step = max(1, _NUMBERS // width)
    for begin in range(0, len(ours), step):
        rows = slice(begin, begin + step)
        yield ours[rows].astype(np.float64), theirs[rows].astype(np.float64)


def cosines(a: Rows, b: Rows) -> NDArray[np.float64]:
    """Returns the cosine of each row of `a` with the same row of `b`: [rows]. It is 1 for two rows
    of zeros, and 0 for a row of zeros and another row."""
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    equal = (a == b).all(axis=1).astype(np.float64)
    found = np.divide((a * b).sum(axis=1), lengths, out=equal, where=lengths != 0)
    return np.clip(found, -1.0, 1.0)  # rounding may exceed this range


class _Sums:
    def __init__(self) -> None:
        self._largest = self._sum = self._cosines = 0.0
        self._least = 1.0
        self._values = self._rows = 0

    def add(self, ours: Rows, theirs: Rows) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # infinity and NaN pass through
            off = np.abs(ours - theirs)
            alike = cosines(ours, theirs)
        self._largest = float(np.maximum(self._largest, off.max()))  # max() would lose NaN
        self._least = float(np.minimum(self._least, alike.min()))
        self._sum += float(off.sum())
        self._cosines += float(alike.sum())
        self._values += off.size
        self._rows += alike.size

    def difference(self) -> Difference:
        mean, cosine = self._sum / self._values, self._cosines / self._rows
        return Difference(self._largest, mean, cosine, self._least)


def _raise(most: dict[str, float], name: str, value: float) -> None:
    most[name] = float(np.maximum(most.get(name, 0.0), value))  # max() would lose NaN


def _or_0(value: float) -> float:
    return value if math.isfinite(value) else 0.0

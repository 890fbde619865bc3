"""Checks samples of audio."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput


class TooLong(InvalidInput):
    """More samples than allowed, at this rate. `samples` is the length of the whole audio where a
    header gives it, otherwise what has been read."""

    samples: int
    rate: int  # Hz


def checked_samples(
    array: NDArray[Any], sampling_rate: int, most_samples: int, field: str
) -> NDArray[np.float32]:
    """Returns samples [n] at `sampling_rate`, float32, between -1 and 1 unless they are too loud.
    Raises InvalidInput for another dtype or shape, for no samples, for values that are not finite,
    and for more than `most_samples`."""
    if array.dtype != np.float32:
        got, wanted = f"dtype {array.dtype}", "dtype float32, samples between -1 and 1"
        raise InvalidInput(field, got, wanted, "convert to float32")
    if array.ndim != 1:
        got, wanted = f"shape {list(array.shape)}", "shape [samples], of one channel"
        raise InvalidInput(field, got, wanted, "send the mean of the channels")
    check_length(array.size, sampling_rate, most_samples // sampling_rate, field)
    return checked_finite(array, field)


def check_length(samples: int, rate: int, most_seconds: int, field: str) -> None:
    """Raises InvalidInput for no samples, and TooLong for more than `most_seconds` at this rate."""
    if samples == 0:
        raise InvalidInput(field, "no samples", "at least 1", "send some audio")
    if samples > most_seconds * rate:
        got = f"{samples} samples, {samples / rate:.1f} s"
        wanted = f"at most {most_seconds * rate}, {most_seconds} s at {rate} Hz"
        error = TooLong(field, got, wanted, "cut it where nobody speaks, and send the parts")
        error.samples, error.rate = samples, rate
        raise error


def checked_finite(samples: NDArray[np.float32], field: str) -> NDArray[np.float32]:
    """Raises InvalidInput unless all samples are finite."""
    if not np.isfinite(samples).all():
        got = "a number that is not finite"
        raise InvalidInput(field, got, "finite numbers", "correct the recording")
    return samples

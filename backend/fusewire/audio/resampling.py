"""Resamples audio with soxr. The only user of soxr."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusewire.audio.recording import REMEDY
from fusewire.errors import InvalidInput


class Resampler:
    """Resamples one channel, block by block."""

    def __init__(self, rate: int, wanted: int, field: str) -> None:
        """Resamples from `rate` to `wanted`, both in Hz. Raises InvalidInput where soxr is not
        installed."""
        try:
            import soxr
        except ImportError:
            got, allowed = f"audio at {rate} Hz", f"{wanted} Hz without soxr, which resamples"
            remedy = f"run pip install 'fusewire[audio]' on the server, or {REMEDY}"
            raise InvalidInput(field, got, allowed, remedy) from None
        self._stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32")

    def next(self, block: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the output samples that this block and the ones before it determine."""
        resampled: NDArray[np.float32] = self._stream.resample_chunk(block)
        return resampled

    def end(self) -> NDArray[np.float32]:
        """Returns the remaining output samples."""
        rest: NDArray[np.float32] = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        return rest

"""WAV files."""

from __future__ import annotations

import io
import wave

import numpy as np
from numpy.typing import NDArray


def wave_file(
    pcm: bytes, *, rate: int = 16000, channels: int = 1, width: int = 2, frames: int | None = None
) -> bytes:
    """Of interleaved samples of `width` bytes. `frames`: as many as its header says."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframesraw(pcm)
    written = bytearray(out.getvalue())
    if frames is not None:
        written[40:44] = (frames * channels * width).to_bytes(4, "little")
    return bytes(written)


def spoken(samples: NDArray[np.float32], rate: int = 16000) -> bytes:
    """A file of 16 bits, as most are."""
    return wave_file((samples * 32767).astype("<i2").tobytes(), rate=rate)

"""WAV files for tests."""

from __future__ import annotations

import io
import wave

import numpy as np
from numpy.typing import NDArray


def wave_file(
    pcm: bytes, *, rate: int = 16000, channels: int = 1, width: int = 2, frames: int | None = None
) -> bytes:
    """Returns a file of interleaved samples of `width` bytes. `frames`: the number in its
    header."""
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
    """Returns a 16-bit file, the most common format."""
    return wave_file((samples * 32767).astype("<i2").tobytes(), rate=rate)

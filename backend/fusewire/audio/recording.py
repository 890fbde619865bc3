"""An opened audio file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REMEDY = "convert it: ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le out.wav"


@dataclass(frozen=True)
class Recording:
    """The values of the header, unchecked, and the audio as blocks [n, channels]. Reading a block
    takes memory and time."""

    rate: int  # Hz
    channels: int
    frames: int | None  # None: not in the header
    blocks: Iterable[NDArray[np.float32]]
    least_frames: int = 0  # of a complete file, according to its header

"""A file of sound that is open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REMEDY = "convert it: ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le out.wav"


@dataclass(frozen=True)
class Recording:
    """What the header says, unchecked, and the sound: blocks [n, channels], each of which takes
    memory and time when it is read."""

    rate: int  # Hz
    channels: int
    frames: int | None  # None: the header does not say
    blocks: Iterable[NDArray[np.float32]]
    least_frames: int = 0  # that a whole file has, as far as its header says

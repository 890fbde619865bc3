"""Reads the audio of a request and computes the features that a model takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fusewire.audio.decode import decode_sound
from fusewire.audio.log_mel import LogMel
from fusewire.audio.samples import checked_samples


@dataclass(frozen=True)
class Heard:
    """The features [frames, bins] of `samples` samples of audio. `frames` is how many of them begin
    within the audio; those after it are silence."""

    features: NDArray[np.float32]
    frames: int
    samples: int
    sampling_rate: int  # Hz

    @property
    def seconds(self) -> float:
        return self.samples / self.sampling_rate


class ReadsAudio(Protocol):
    """Reads audio. `field`: the input that errors name."""

    def file(self, data: bytes, field: str) -> Heard:
        """Reads a file. Raises InvalidInput as `decode_sound`."""

    def samples(self, array: NDArray[Any], field: str) -> Heard:
        """Reads samples. Raises InvalidInput as `checked_samples`."""


class AudioReader:
    """Reads audio of at most `most_seconds` for one model, in the calling thread. Takes some 0.1 s
    for every 30 s of audio."""

    def __init__(self, log_mel: LogMel, most_seconds: int) -> None:
        self._log_mel = log_mel
        self._limits = log_mel.sampling_rate, most_seconds * log_mel.sampling_rate

    def file(self, data: bytes, field: str) -> Heard:
        return self._heard(decode_sound(data, *self._limits, field))

    def samples(self, array: NDArray[Any], field: str) -> Heard:
        return self._heard(checked_samples(array, *self._limits, field))

    def _heard(self, samples: NDArray[np.float32]) -> Heard:
        log_mel, size = self._log_mel, samples.size
        return Heard(log_mel.features(samples), log_mel.heard(size), size, log_mel.sampling_rate)

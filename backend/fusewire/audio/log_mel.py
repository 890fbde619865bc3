"""Log-mel features of audio, computed in float64: the input of Whisper's encoder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

# Slaney's scale: linear below, logarithmic above.
_BREAK_HZ, _BREAK_MELS = 1000.0, 15.0
_MELS_PER_LOG = 27.0 / np.log(6.4)
_HIGHEST_HZ = 8000.0
_LEAST_POWER = 1e-10
_RANGE = 8.0  # powers of ten below the loudest


@dataclass(frozen=True)
class LogMel:
    """Computes `bins` features for each window of `n_fft` samples, every `hop_length` samples.
    Audio shorter than `seconds` is padded with silence to this length; longer audio keeps its own
    length."""

    bins: int
    sampling_rate: int  # Hz
    n_fft: int
    hop_length: int
    seconds: int

    @property
    def most_samples(self) -> int:
        return self.seconds * self.sampling_rate

    @property
    def frames(self) -> int:
        return self.most_samples // self.hop_length

    def heard(self, samples: int) -> int:
        """Returns the number of frames that begin within this many samples, as in the attention
        mask of transformers' extractor."""
        whole = samples > self.most_samples
        return samples // self.hop_length if whole else -(-samples // self.hop_length)

    def features(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the features [frames, bins] of samples [n]: (log10(power in each band) + 4) / 4,
        where the logarithm is clamped to at most 8 below the loudest. For more than `most_samples`
        these are all whole frames, n // hop_length. Allocates memory for the result, and for the
        spectrum of `most_samples`."""
        if samples.size <= self.most_samples:
            heard = min(self.frames, (samples.size + self.n_fft // 2) // self.hop_length + 1)
            padded = np.zeros(self.most_samples, np.float32)
            padded[: samples.size] = samples
            samples, frames = padded, self.frames
        else:
            heard = frames = samples.size // self.hop_length
        # Frames after the audio keep this value, which is that of silence.
        log = np.full((frames, self.bins), np.log10(_LEAST_POWER))
        for begin in range(0, heard, self.frames):
            part = log[begin : min(begin + self.frames, heard)]
            windows = self._windows(samples, begin, len(part))
            spectrum = np.fft.rfft(windows * self._window, axis=-1)
            power = (spectrum.real**2 + spectrum.imag**2) @ self._filters
            np.log10(np.maximum(power, _LEAST_POWER), out=part)
        np.maximum(log, log.max() - _RANGE, out=log)
        log += 4
        log /= 4
        return log.astype(np.float32)

    def _windows(self, samples: NDArray[np.float32], first: int, count: int) -> NDArray[np.float32]:
        """Returns the windows [count, n_fft] of the frames from `first` on. The audio is mirrored
        at its ends."""
        half = self.n_fft // 2
        begin = first * self.hop_length - half
        end = begin + (count - 1) * self.hop_length + self.n_fft
        piece = samples[max(0, begin) : end]
        mirrored = np.pad(piece, (max(0, -begin), max(0, end - samples.size)), mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(mirrored, self.n_fft)
        return windows[:: self.hop_length]

    @cached_property
    def _window(self) -> NDArray[np.float64]:
        """The periodic Hann window."""
        return np.hanning(self.n_fft + 1)[:-1]

    @cached_property
    def _filters(self) -> NDArray[np.float64]:
        """[n_fft / 2 + 1, bins]: triangular filters of equal area over the bands (Slaney's Auditory
        Toolbox, 1998)."""
        edges = _hertz(np.linspace(0, _mels(_HIGHEST_HZ), self.bins + 2))
        centres = np.linspace(0, self.sampling_rate // 2, self.n_fft // 2 + 1)[:, None]
        rising = (centres - edges[:-2]) / np.diff(edges)[:-1]
        falling = (edges[2:] - centres) / np.diff(edges)[1:]
        triangles = np.maximum(0, np.minimum(rising, falling))
        return triangles * (2 / (edges[2:] - edges[:-2]))


def _mels(hertz: float) -> float:
    if hertz < _BREAK_HZ:
        return hertz * _BREAK_MELS / _BREAK_HZ
    return float(_BREAK_MELS + np.log(hertz / _BREAK_HZ) * _MELS_PER_LOG)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = mels * (_BREAK_HZ / _BREAK_MELS)
    logarithmic = _BREAK_HZ * np.exp((mels - _BREAK_MELS) / _MELS_PER_LOG)
    return np.where(mels < _BREAK_MELS, linear, logarithmic)

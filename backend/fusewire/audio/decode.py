"""Decodes the bytes of an audio file to the samples that a model takes."""

from __future__ import annotations

import wave

import numpy as np
from numpy.typing import NDArray

from fusewire.audio.other_files import open_other
from fusewire.audio.recording import REMEDY, Recording
from fusewire.audio.resampling import Resampler
from fusewire.audio.samples import check_length, checked_finite
from fusewire.audio.wave_file import open_wave
from fusewire.errors import InvalidInput

WAVE = b"RIFF"  # first bytes of a WAV file
_MOST_CHANNELS = 8
_LEAST_RATE, _MOST_RATE = 1000, 192_000  # Hz


def decode_sound(
    data: bytes, sampling_rate: int, most_samples: int, field: str
) -> NDArray[np.float32]:
    """Returns the samples [n] of a file: the mean of its channels, resampled to `sampling_rate`
    where the file has another rate. PCM WAV files at this rate need no library. Raises InvalidInput
    for other formats, damaged files, files without samples, and for more than `most_samples`. A
    correct header shows the latter before any memory is allocated for the samples; otherwise it is
    raised as soon as more have been read."""
    try:
        recording = open_wave(data, field) if data.startswith(WAVE) else open_other(data, field)
    except wave.Error:
        recording = open_other(data, field)
    _check(recording, field)
    rate, most_seconds = recording.rate, most_samples // sampling_rate
    if recording.frames is not None:
        check_length(recording.frames, rate, most_seconds, field)
    resampler = None if rate == sampling_rate else Resampler(rate, sampling_rate, field)
    frames, parts = 0, []
    for block in recording.blocks:
        frames += len(block)
        check_length(frames, rate, most_seconds, field)
        with np.errstate(invalid="ignore", over="ignore"):  # refused below if not finite
            mono = block.mean(axis=1, dtype=np.float64).astype(np.float32)
        parts.append(mono if resampler is None else resampler.next(mono))
    check_length(frames, rate, most_seconds, field)
    if frames < recording.least_frames:
        there = f"{frames} of {recording.frames} samples"
        got = f"a file that ends before its audio does, after {there}"
        raise InvalidInput(field, got, "a whole file", "send all of it")
    if resampler is not None:
        parts.append(resampler.end())
    samples = np.concatenate(parts)[:most_samples]
    # Resampling a few samples of a high rate may give none.
    check_length(samples.size, sampling_rate, most_seconds, field)
    return checked_finite(samples, field)


def _check(recording: Recording, field: str) -> None:
    if not _LEAST_RATE <= recording.rate <= _MOST_RATE:
        wanted = f"{_LEAST_RATE} to {_MOST_RATE} Hz"
        raise InvalidInput(field, f"audio at {recording.rate} Hz", wanted, REMEDY)
    if not 1 <= recording.channels <= _MOST_CHANNELS:
        wanted = f"1 to {_MOST_CHANNELS} channels"
        raise InvalidInput(field, f"{recording.channels} channels", wanted, REMEDY)

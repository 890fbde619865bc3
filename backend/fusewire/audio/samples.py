"""Sound as samples, checked: numbers that a client sends, or a WAV file of PCM."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput

_REMEDY = "convert it: ffmpeg -i FILE -ac 1 -ar {rate} -c:a pcm_s16le out.wav"
_MOST_CHANNELS = 8
# Bytes of a sample -> how numpy reads it, and what is silence and full scale. Three bytes become
# the upper ones of four.
_PCM = {1: ("u1", 128, 1 << 7), 2: ("<i2", 0, 1 << 15), 3: ("<i4", 0, 1 << 31)}
_PCM[4] = _PCM[3]


def checked_samples(
    array: NDArray[Any], sampling_rate: int, most_samples: int, field: str
) -> NDArray[np.float32]:
    """Numbers [n] that sound at `sampling_rate`, between -1 and 1 where they are not too loud;
    InvalidInput for others, for none, and for more than `most_samples`."""
    if array.dtype != np.float32:
        got, wanted = f"dtype {array.dtype}", "dtype float32, samples between -1 and 1"
        raise InvalidInput(field, got, wanted, "convert to float32")
    if array.ndim != 1:
        got, wanted = f"shape {list(array.shape)}", "shape [samples], of one channel"
        raise InvalidInput(field, got, wanted, "send the mean of the channels")
    _check_length(array.size, sampling_rate, most_samples, field)
    if not np.isfinite(array).all():
        got = "a number that is not finite"
        raise InvalidInput(field, got, "finite numbers", "correct the recording")
    return array


def decode_wave(
    data: bytes, sampling_rate: int, most_samples: int, field: str
) -> NDArray[np.float32]:
    """The samples [n] of a WAV file, the mean of its channels. InvalidInput for another format or
    rate, for no sound, and for more than `most_samples`, by the header alone."""
    remedy = _REMEDY.format(rate=sampling_rate)
    wanted = f"a WAV file of PCM at {sampling_rate} Hz"
    try:
        with wave.open(io.BytesIO(data)) as file:
            header = file.getparams()
            if header.framerate != sampling_rate:
                raise InvalidInput(field, f"sound at {header.framerate} Hz", wanted, remedy)
            if header.sampwidth not in _PCM or not 1 <= header.nchannels <= _MOST_CHANNELS:
                got = f"{header.nchannels} channels of {header.sampwidth} bytes a sample"
                allowed = f"1 to {_MOST_CHANNELS} channels of 1 to 4 bytes"
                raise InvalidInput(field, got, allowed, remedy)
            _check_length(header.nframes, sampling_rate, most_samples, field)
            pcm = file.readframes(header.nframes)
    except (wave.Error, EOFError, RuntimeError) as error:
        got = f"{len(data)} bytes that are none ({str(error) or 'they end early'})"
        raise InvalidInput(field, got, wanted, remedy) from None
    if len(pcm) != header.nframes * header.nchannels * header.sampwidth:
        got = "a file that ends before its sound does"
        raise InvalidInput(field, got, wanted, "send all of it")
    dtype, silence, scale = _PCM[header.sampwidth]
    if header.sampwidth == 3:
        padded = np.zeros((len(pcm) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(pcm, np.uint8).reshape(-1, 3)
        pcm = padded.tobytes()
    channels = np.frombuffer(pcm, dtype).reshape(-1, header.nchannels).astype(np.float64)
    return ((channels.mean(axis=1) - silence) / scale).astype(np.float32)


def _check_length(samples: int, sampling_rate: int, most_samples: int, field: str) -> None:
    if samples == 0:
        raise InvalidInput(field, "no samples", "at least 1", "send some sound")
    if samples > most_samples:
        got = f"{samples} samples, {samples / sampling_rate:.1f} s"
        seconds = most_samples // sampling_rate
        wanted = f"at most {most_samples}, {seconds} s at {sampling_rate} Hz"
        raise InvalidInput(field, got, wanted, "cut it where nobody speaks, and send the parts")

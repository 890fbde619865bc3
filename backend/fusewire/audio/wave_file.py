"""Reads PCM WAV files with Python's own `wave` module."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fusewire.audio.recording import REMEDY, Recording
from fusewire.errors import InvalidInput

# Bytes per sample -> its numpy dtype, and the values of silence and full scale. Three bytes become
# the upper three of four.
_PCM = {1: ("u1", 128, 1 << 7), 2: ("<i2", 0, 1 << 15), 3: ("<i4", 0, 1 << 31)}
_PCM[4] = _PCM[3]
_BLOCK = 1 << 16  # frames
_UNSIZED = (0, 0xFFFFFFFF)


def open_wave(data: bytes, field: str) -> Recording:
    """Raises InvalidInput for data that is not a WAV file, and wave.Error with its reason for a
    format that is not PCM."""
    try:
        file = wave.open(io.BytesIO(_with_sizes(data)))  # noqa: SIM115  of memory alone
    except (EOFError, RuntimeError) as error:
        got = f"{len(data)} bytes of another format ({str(error) or 'they end early'})"
        raise InvalidInput(field, got, "a WAV file of PCM", REMEDY) from None
    header = file.getparams()
    if header.sampwidth not in _PCM:
        got = f"{header.sampwidth} bytes a sample"
        raise InvalidInput(field, got, "1 to 4", REMEDY)
    frames = header.nframes
    blocks = _blocks(file, frames)
    return Recording(header.framerate, header.nchannels, frames, blocks, least_frames=frames)


def _with_sizes(data: bytes) -> bytes:
    """Returns the file with sizes in its header. A file that was written into a pipe has sizes of 0
    or all ones; its data extends to the end of the file."""
    if int.from_bytes(data[4:8], "little") not in _UNSIZED:
        return data
    if (chunk := _samples(data)) is None:
        return data
    begin, _ = chunk
    sizes = [each.to_bytes(4, "little") for each in (len(data) - 8, len(data) - begin)]
    return b"".join([data[:4], sizes[0], data[8 : begin - 4], sizes[1], data[begin:]])


def whole_frames(data: bytes, frames: int) -> int:
    """Returns how many frames the whole file has according to its header, where it has `frames` now
    and may have been cut off."""
    if (chunk := _samples(data)) is None:
        return frames
    begin, size = chunk
    there = len(data) - begin
    return frames if size in _UNSIZED or size <= there else frames * size // max(there, 1)


def _samples(data: bytes) -> tuple[int, int] | None:
    """Returns where the samples begin, and their number of bytes according to the header."""
    begin = 12
    while begin + 8 <= len(data):
        size = int.from_bytes(data[begin + 4 : begin + 8], "little")
        if data[begin : begin + 4] == b"data":
            return begin + 8, size
        begin += 8 + size + size % 2
    return None


def _blocks(file: wave.Wave_read, frames: int) -> Iterator[NDArray[np.float32]]:
    """Yields blocks of samples up to the end of the file."""
    channels, width = file.getnchannels(), file.getsampwidth()
    dtype, silence, scale = _PCM[width]
    for begin in range(0, frames, _BLOCK):
        wanted = min(_BLOCK, frames - begin)
        try:
            pcm = file.readframes(wanted)
        except (wave.Error, EOFError, RuntimeError):
            pcm = b""
        pcm = pcm[: len(pcm) - len(pcm) % (channels * width)]
        if not pcm:
            return
        if width == 3:
            padded = np.zeros((len(pcm) // 3, 4), np.uint8)
            padded[:, 1:] = np.frombuffer(pcm, np.uint8).reshape(-1, 3)
            pcm = padded.tobytes()
        numbers = np.frombuffer(pcm, dtype).reshape(-1, channels).astype(np.float64)
        yield ((numbers - silence) / scale).astype(np.float32)

"""WAV files are decoded as they say; what cannot be heard is refused by name, with the remedy."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.audio import checked_samples, decode_wave
from fusewire.errors import InvalidInput

from tests.audio.waves import wave_file

RATE, MOST = 16000, 480000


def decoded(data: bytes) -> np.ndarray:
    return decode_wave(data, RATE, MOST, "audio")


def test_every_width_has_the_same_full_scale():
    wanted = np.array([0, 0.5, -1, 0.25], np.float32)
    files = {
        1: bytes([128, 192, 0, 160]),
        2: np.array([0, 1 << 14, -(1 << 15), 1 << 13], "<i2").tobytes(),
        3: bytes([0, 0, 0, 0, 0, 0x40, 0, 0, 0x80, 0, 0, 0x20]),
        4: np.array([0, 1 << 30, -(1 << 31), 1 << 29], "<i4").tobytes(),
    }
    for width, pcm in files.items():
        got = decoded(wave_file(pcm, width=width))
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, wanted)


def test_channels_are_averaged():
    pcm = np.array([[1 << 14, 0], [-(1 << 14), -(1 << 14)]], "<i2").tobytes()
    np.testing.assert_array_equal(decoded(wave_file(pcm, channels=2)), [0.25, -0.5])


FULL = b"\0\0" * MOST


def test_as_much_as_the_model_hears_is_taken():
    assert decoded(wave_file(FULL)).size == MOST


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"0 bytes that are none \(they end early\), wanted a WAV file of PCM at 16000"),
        (b"ID3\x03 not a wave", "bytes that are none .*convert it: ffmpeg -i FILE -ac 1 -ar 16000"),
        (b"RIFF\xff\xff\xff\xffWAVE", "bytes that are none"),
        (
            wave_file(b"\0\0" * 9, rate=44100),
            "sound at 44100 Hz, wanted .* at 16000 Hz; convert it",
        ),
        (wave_file(b""), "no samples, wanted at least 1"),
        (wave_file(FULL + b"\0\0"), r"480001 samples, 30.0 s, wanted at most 480000, 30 s"),
        (wave_file(b"\0\0" * 8, frames=10**9), "1000000000 samples, 62500.0 s, wanted at most"),
        (wave_file(b"\0\0" * 8, frames=9), "a file that ends before its sound does"),
        (wave_file(b"\0" * 18, channels=9), "9 channels of 2 bytes a sample, wanted 1 to 8"),
        (wave_file(b"\0\0" * 9).replace(b"\x01\0\x01\0", b"\x03\0\x01\0", 1), "unknown format: 3"),
    ],
    ids=["empty", "other", "header", "rate", "none", "long", "vast", "short", "channels", "float"],
)
def test_other_files_are_refused(data, message):
    with pytest.raises(InvalidInput, match=f"audio: got .*{message}"):
        decoded(data)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros(9), "dtype float64, wanted dtype float32"),
        (np.zeros((2, 9), np.float32), r"shape \[2, 9\], wanted shape \[samples\], of one channel"),
        (np.float32(1).reshape(()), r"shape \[\]"),
        (np.zeros(0, np.float32), "no samples"),
        (np.zeros(31 * RATE, np.float32), "496000 samples, 31.0 s, wanted at most 480000, 30 s"),
        (np.array([0, np.nan], np.float32), "a number that is not finite"),
        (np.array([0, -np.inf], np.float32), "a number that is not finite"),
    ],
    ids=["dtype", "channels", "rank", "none", "long", "nan", "inf"],
)
def test_other_samples_are_refused(samples, message):
    with pytest.raises(InvalidInput, match=f"samples: got {message}"):
        checked_samples(samples, RATE, MOST, "samples")


def test_a_thousand_million_samples_are_refused_before_they_are_looked_at():
    vast = np.broadcast_to(np.float32(np.nan), 10**9)
    with pytest.raises(InvalidInput, match=r"1000000000 samples, 62500\.0 s"):
        checked_samples(vast, RATE, MOST, "samples")

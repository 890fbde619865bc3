"""Files are decoded as their headers say, at the model's rate; unsupported ones are rejected by
name, with the remedy, and use no memory."""

from __future__ import annotations

import io
import re
import struct
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from fusewire.audio import checked_samples, decode_sound
from fusewire.errors import InvalidInput
from hypothesis import given
from hypothesis import strategies as st

from tests.audio.waves import wave_file

RATE, MOST = 16000, 480000
FORMATS = [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None), ("WAV", "FLOAT")]


def decoded(data: bytes) -> np.ndarray:
    return decode_sound(data, RATE, MOST, "audio")


def tone(seconds: float = 1.0, rate: int = RATE, hertz: float = 440.0) -> np.ndarray:
    return 0.4 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


def written(audio: np.ndarray, rate: int, kind: str, subtype: str | None = None) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, audio, rate, format=kind, subtype=subtype)
    return out.getvalue()


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


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF])
def test_a_file_that_was_written_into_a_pipe_goes_on_to_its_end(size):
    pcm = np.arange(-500, 500, dtype="<i2").tobytes()
    whole, unknown = wave_file(pcm), size.to_bytes(4, "little")
    begin = whole.index(b"data")
    more = b"LIST" + (3).to_bytes(4, "little") + b"abc\0"  # chunks begin at even offsets
    piped = whole[:4] + unknown + whole[8:begin] + more + b"data" + unknown + pcm
    np.testing.assert_array_equal(decoded(piped), decoded(whole))
    # Half a sample is ignored.
    np.testing.assert_array_equal(decoded(piped + b"\1"), decoded(whole))


def test_channels_are_averaged():
    pcm = np.array([[1 << 14, 0], [-(1 << 14), -(1 << 14)]], "<i2").tobytes()
    np.testing.assert_array_equal(decoded(wave_file(pcm, channels=2)), [0.25, -0.5])


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000])
def test_other_rates_are_resampled(rate):
    """The result is that of one soxr call, however the audio is split into blocks."""
    audio = np.stack([tone(9, rate), tone(9, rate, 1000)], axis=1)
    pcm = np.round(audio * 32767).astype("<i2")
    got = decoded(wave_file(pcm.tobytes(), rate=rate, channels=2))
    mono = (pcm.astype(np.float64) / 32768).mean(axis=1).astype(np.float32)
    np.testing.assert_allclose(got, soxr.resample(mono, rate, RATE), atol=1e-6)
    assert got.size == pytest.approx(9 * RATE, abs=1)


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
@pytest.mark.parametrize("channels", [1, 2])
def test_other_formats_are_decoded(kind, subtype, channels):
    rate = 48000
    audio = np.stack([tone(2, rate)] * channels, axis=1)
    got = decoded(written(audio, rate, kind, subtype))
    assert got.size == pytest.approx(2 * RATE, abs=RATE / 10)
    spectrum = np.abs(np.fft.rfft(got[:RATE] * np.hanning(RATE)))
    assert spectrum.argmax() == 440  # Hz
    assert np.abs(got[4000:-4000]).max() == pytest.approx(0.4, abs=0.03)


def test_files_without_loss_are_the_same_in_each_format():
    pcm = np.round(tone() * 32767).astype("<i2")
    wave = decoded(wave_file(pcm.tobytes()))
    np.testing.assert_array_equal(decoded(written(pcm, RATE, "FLAC", "PCM_16")), wave)
    floats = (pcm / 32768).astype(np.float32)
    np.testing.assert_array_equal(decoded(written(floats, RATE, "WAV", "FLOAT")), wave)


FULL = b"\0\0" * MOST


def test_as_much_as_is_allowed_is_taken():
    assert decoded(wave_file(FULL)).size == MOST
    assert decoded(written(np.zeros(30 * 44100), 44100, "FLAC")).size == MOST


def flac_that_says(frames: int) -> bytes:
    """Returns a file of short audio with another number of samples in its header."""
    data = bytearray(written(tone(0.1), RATE, "FLAC"))
    [bits] = struct.unpack(">Q", data[18:26])
    data[18:26] = struct.pack(">Q", bits >> 36 << 36 | frames)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes of another format, wanted a WAV, FLAC, MP3 or Ogg file; convert it: ffmpeg"),
        (b"MThd no audio", "13 bytes of another format"),
        (b"RIFF\xff\xff\xff\xffWAVE", "12 bytes that are damaged"),
        (b"ID3\x03 no audio", "bytes that are damaged"),
        (b"fLaC" + bytes(64), "68 bytes that are damaged"),
        (b"OggS" + bytes(64), "68 bytes that are damaged"),
        (wave_file(b""), "no samples, wanted at least 1"),
        (wave_file(FULL + b"\0\0"), r"480001 samples, 30.0 s, wanted at most 480000, 30 s"),
        (wave_file(b"\0\0" * 8, frames=10**9), "1000000000 samples, 62500.0 s, wanted at most"),
        (wave_file(b"\0\0" * 8, frames=9), "a file that ends before its audio does, after 8 of 9 "),
        (wave_file(b"\0" * 18, channels=9), "9 channels, wanted 1 to 8 channels"),
        (wave_file(b"\0\0" * 9, rate=999), "audio at 999 Hz, wanted 1000 to 192000 Hz"),
        (wave_file(b"\0\0" * 9, rate=192001), "audio at 192001 Hz, wanted 1000 to 192000 Hz"),
        (written(np.zeros(31 * 8000), 8000, "FLAC"), "248000 samples, 31.0 s, wanted at most 24"),
        (written(np.zeros(31 * 48000), 48000, "MP3"), "samples, 31.0 s, wanted at most"),
        (flac_that_says(1 << 35), "34359738368 samples, 2147483.6 s, wanted at most"),
        (written(np.full(99, np.nan), RATE, "WAV", "FLOAT"), "a number that is not finite"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_other_files_are_refused(data, message):
    with pytest.raises(InvalidInput, match=f"audio: got .*{message}"):
        decoded(data)


@pytest.mark.parametrize("kind", ["MP3", "WAV"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_file_that_was_cut_is_refused_with_what_there_is_and_was(kind, share):
    rng = np.random.default_rng(0)
    whole = written(rng.normal(0, 0.1, 10 * RATE), RATE, kind, "FLOAT" if kind == "WAV" else None)
    assert decoded(whole).size == 10 * RATE
    with pytest.raises(
        InvalidInput, match=r"ends before its audio does, after \d+ of 160000"
    ) as no:
        decoded(whole[: int(len(whole) * share)])
    there = int(re.findall(r"after (\d+) of", str(no.value))[0])
    assert there == pytest.approx(share * 10 * RATE, abs=RATE / 2)


def test_a_flac_file_that_was_cut_is_refused():
    whole = written(np.random.default_rng(0).normal(0, 0.1, 10 * RATE), RATE, "FLAC")
    # Cut within a frame, and after one.
    for cut in (whole[: len(whole) // 2], flac_that_says(1601)):
        with pytest.raises(InvalidInput, match=r"bytes that are damaged \(.+\), wanted"):
            decoded(cut)


def mp3_without_header(mode: str) -> bytes:
    """Returns a file of 10 s without its first frame, in which LAME writes the length."""
    noise = np.random.default_rng(0).normal(0, 1, 10 * RATE) * np.linspace(0, 0.3, 10 * RATE)
    out = io.BytesIO()
    # Each has no effect without the other.
    options = {"bitrate_mode": mode, "compression_level": 0.5}
    soundfile.write(out, noise, RATE, format="MP3", **options)
    whole = out.getvalue()
    assert whole[13:17] in (b"Xing", b"Info")
    return whole[whole.index(whole[:2], 4) :]


def test_what_does_not_say_its_length_is_heard_as_far_as_it_goes():
    noise = np.random.default_rng(0).normal(0, 0.1, 10 * RATE)
    for file in (mp3_without_header("CONSTANT"), written(noise, RATE, "OGG", "VORBIS")):
        assert decoded(file).size == pytest.approx(10 * RATE, abs=RATE / 5)
        assert decoded(file[: len(file) // 2]).size == pytest.approx(5 * RATE, abs=RATE)
    assert decoded(mp3_without_header("VARIABLE")).size == pytest.approx(10 * RATE, abs=RATE / 5)


def test_what_is_heard_in_part_is_refused():
    """libsndfile estimates the length from the first frame's bit rate, and stops there."""
    file = mp3_without_header("AVERAGE")
    with pytest.raises(
        InvalidInput, match=rf"a file without a length, of which \d+ bytes of {len(file)} are read"
    ):
        decoded(file)


def test_a_flac_file_of_unknown_length_is_refused():
    """Programs that write to a pipe create such files, in which libsndfile cannot continue to
    read."""
    data = bytearray(written(tone(31, 8000), 8000, "FLAC"))
    [bits] = struct.unpack(">Q", data[18:26])
    data[18:26] = struct.pack(">Q", bits >> 36 << 36)
    with pytest.raises(InvalidInput, match=r"audio: got .* bytes that are damaged .*convert it"):
        decoded(bytes(data))


def test_silence_of_many_hours_takes_no_memory():
    """A small file may contain very long audio."""
    data = written(np.zeros(100 * 60 * 8000, np.int16), 8000, "FLAC")
    assert len(data) < 1 << 20
    tracemalloc.start()
    with pytest.raises(InvalidInput, match="6000"):
        decoded(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("data", "missing", "message"),
    [
        (wave_file(FULL[:99], rate=44100), "soxr", r"44100 Hz, .*pip install 'fusewire\[audio\]'"),
        (written(tone(), RATE, "FLAC"), "soundfile", r"a FLAC file, .* 'fusewire\[audio\]'"),
        (written(tone(), RATE, "WAV", "FLOAT"), "soundfile", "a WAV file of no PCM, or damaged"),
    ],
    ids=["rate", "flac", "float"],
)
def test_what_needs_a_package_that_is_missing_is_refused_by_name(
    monkeypatch, data, missing, message
):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidInput, match=message):
        decoded(data)
    assert decoded(wave_file(FULL[:100])).size == 50


_VALID = [
    wave_file(np.round(tone(0.05) * 9999).astype("<i2").tobytes(), rate=22050),
    *(written(tone(0.05, 48000), 48000, kind, subtype) for kind, subtype in FORMATS),
]


@st.composite
def damaged(draw: Any) -> bytes:
    """Draws files with some bytes changed, removed or repeated."""
    data = bytearray(draw(st.sampled_from(_VALID)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, min(len(data) - 1, draw(st.sampled_from([64, 10**6]))))))
        kind = draw(st.sampled_from(["change", "cut", "repeat", "end"]))
        if kind == "change":
            data[at : at + 4] = draw(st.binary(min_size=1, max_size=4))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 512))]
        else:
            del data[at:]
    return bytes(data)


@given(st.one_of(damaged(), st.binary(max_size=200), st.binary(max_size=99).map(b"RIFF".__add__)))
def test_any_bytes_are_audio_or_refused(data):
    try:
        samples = decoded(data)
    except InvalidInput:
        return
    assert samples.dtype == np.float32
    assert 0 < samples.size <= MOST
    assert np.isfinite(samples).all()


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

"""Audio is read in processes as in threads; a crash affects only the request that caused it."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import soundfile
from fusewire.audio import AudioProcesses, AudioReader, Heard, LogMel, LongerAudio
from fusewire.errors import InvalidInput, Unavailable
from fusewire.worker_processes import process

from tests.audio.waves import spoken

RATE = 16000
LOG_MEL = LogMel(80, RATE, 400, 160, 30)
MOST_S, READ_S = 90, 40


@pytest.fixture(scope="module")
def processes() -> Iterator[AudioProcesses]:
    yield (made := AudioProcesses(LOG_MEL, MOST_S, READ_S))
    made.kill()
    made.close()


@pytest.fixture
def own() -> Iterator[AudioProcesses]:
    """Yields processes that start within the test."""
    yield (made := AudioProcesses(LOG_MEL, MOST_S, READ_S))
    made.kill()
    made.close()


def noise(seconds: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(0, 0.1, int(seconds * RATE)).clip(-1, 1).astype(np.float32)


def flac(seconds: float, rate: int = 8000) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.zeros(int(seconds * rate)), rate, format="FLAC")
    return out.getvalue()


def equal(found: Heard, wanted: Heard) -> None:
    np.testing.assert_array_equal(found.features, wanted.features)
    assert found.features.dtype == np.float32
    assert found.seconds == wanted.seconds


@pytest.mark.parametrize("seconds", [0.5, 30, 35])
def test_features_are_those_that_a_thread_reads(processes, seconds):
    here = AudioReader(LOG_MEL, MOST_S)
    for data in (spoken(noise(seconds)), flac(seconds)):
        equal(processes.file(data, "audio"), here.file(data, "audio"))
    equal(processes.samples(noise(seconds), "samples"), here.samples(noise(seconds), "samples"))


def test_what_is_wrong_has_the_error_of_its_own(processes):
    for data, words in ((b"MThd", "4 bytes of another format"), (b"fLaC" + bytes(9), "damaged")):
        with pytest.raises(InvalidInput, match=f"file: got .*{words}"):
            processes.file(data, "file")
    with pytest.raises(InvalidInput, match="samples: got dtype float64"):
        processes.samples(np.zeros(9), "samples")
    assert processes.file(flac(1), "audio").seconds == 1


def test_longer_audio_is_read_by_others_and_refused_here_where_nobody_would(processes):
    with pytest.raises(LongerAudio):
        processes.file(flac(READ_S + 1), "audio")
    with pytest.raises(LongerAudio):
        processes.samples(noise(READ_S + 1), "samples")
    for read in (
        lambda: processes.file(flac(MOST_S + 1), "audio"),
        lambda: processes.samples(noise(MOST_S + 1), "audio"),
    ):
        with pytest.raises(InvalidInput, match=r"audio: got \d+ samples, 91.0 s, .*, 90 s at"):
            read()


def test_features_of_any_length_come_back():
    """They are larger than other answers of a worker may be."""
    made = AudioProcesses(LogMel(1024, RATE, 400, 20, 1), 60, 60)
    try:
        found = made.samples(noise(50), "samples").features
        assert found.shape == (50 * RATE // 20, 1024)
        assert found.nbytes > process.MOST_BYTES
    finally:
        made.kill()
        made.close()


def test_a_decoder_that_crashes_harms_its_request_alone(own, monkeypatch):
    data, bad = flac(1), flac(2)
    harm = (
        "import os; d = program.decode_sound; crash = lambda: os.kill(os.getpid(), 11); "
        f"program.decode_sound = lambda *a: crash() if len(a[0]) == {len(bad)} else d(*a)"
    )
    _before_the_program(monkeypatch, harm)
    assert len(data) != len(bad)
    assert own.file(data, "audio").seconds == 1
    with pytest.raises(Unavailable, match=r"^audio process: got SIGSEGV, twice, wanted an answer"):
        own.file(bad, "audio")
    assert own.file(data, "audio").seconds == 1


def test_memory_of_an_audio_input_is_bounded(own, monkeypatch):
    _before_the_program(monkeypatch, "program._call_bytes = lambda *_: 1 << 20")
    with pytest.raises(InvalidInput, match=r"audio that cannot be read \(it takes too much memory"):
        own.samples(noise(30), "samples")


def test_time_of_an_audio_input_is_bounded(own, monkeypatch):
    own.file(flac(1), "audio")
    [its] = own._processes._all
    monkeypatch.setattr(own, "_deadline_s", 0.05)
    os.kill(its.pid, signal.SIGSTOP)
    with pytest.raises(InvalidInput, match=r"cannot be read \(it takes over 0.05 s\).*the parts"):
        own.file(flac(1), "audio")


def _before_the_program(monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """Executes the statement in each process after its module, `program`, is imported."""
    begun = f"{statement}\nprogram.main("
    monkeypatch.setattr(process, "_PROGRAM", process._PROGRAM.replace("program.main(", begun))

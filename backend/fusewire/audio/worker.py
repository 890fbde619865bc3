"""The program of a process that reads audio for one model. Takes a file or samples, returns
features."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fusewire.audio.decode import decode_sound
from fusewire.audio.log_mel import LogMel
from fusewire.audio.processes import deadline_s
from fusewire.audio.samples import TooLong, check_length
from fusewire.worker_processes.program import Loaded, serve

# Memory of a call, beyond that of the loaded worker: three times the largest file that gRPC
# accepts; the samples, in blocks and concatenated; the features in float64 and in float32; and the
# windows and spectra of one stretch of `frames` frames.
_FILE_BYTES = 3 << 31
_SAMPLE_BYTES, _FEATURE_BYTES, _WINDOW_BYTES = 16, 24, 64


def main(owner: int) -> None:
    """`owner`: process id of the owner."""
    serve(owner, _load)


def _load(configuration: Mapping[str, Any]) -> Loaded:
    log_mel = LogMel(**configuration["log_mel"])
    most_seconds, read_seconds = configuration["most_seconds"], configuration["read_seconds"]
    rate = log_mel.sampling_rate
    for package in ("soundfile", "soxr"):  # loaded now, while files may still be opened
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module(package)
    log_mel.features(np.zeros(1, np.float32))  # computes its tables

    def call(message: Mapping[str, Any]) -> tuple[Any, memoryview | None]:
        field, body = message["field"], message["body"]
        if message["decoded"]:
            samples = body.view(np.float32)
        else:
            try:
                samples = decode_sound(body.tobytes(), rate, read_seconds * rate, field)
            except TooLong as error:
                check_length(error.samples, error.rate, most_seconds, field)
                return None, None
        features = log_mel.features(samples)
        answer = {"shape": features.shape, "samples": samples.size}
        return answer, features.data.cast("B")

    return Loaded({}, call, _call_bytes(log_mel, read_seconds), deadline_s(read_seconds))


def _call_bytes(log_mel: LogMel, seconds: int) -> int:
    samples = max(seconds, log_mel.seconds) * log_mel.sampling_rate
    features = samples // log_mel.hop_length * log_mel.bins
    windows = log_mel.frames * log_mel.n_fft
    return (
        _FILE_BYTES + _SAMPLE_BYTES * samples + _FEATURE_BYTES * features + _WINDOW_BYTES * windows
    )

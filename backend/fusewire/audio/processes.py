"""Reads audio of a server's requests in worker processes, so that crashes of decoders and hours of
work affect only these processes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.audio.log_mel import LogMel
from fusewire.audio.reader import Heard
from fusewire.audio.samples import checked_samples
from fusewire.worker_processes.of_threads import ProcessOfEachThread, Reads

_READS = Reads("audio process", "audio", "cut it where nobody speaks, and send the parts")


class LongerAudio(Exception):
    """Audio that is longer than these processes read, but not longer than a request may send."""


class AudioProcesses:
    """An AudioReader with one worker process per calling thread. Raises LongerAudio, and
    Unavailable where no process can read."""

    def __init__(self, log_mel: LogMel, most_seconds: int, read_seconds: int) -> None:
        """`most_seconds`: the longest audio that a request may send. `read_seconds`: the longest
        audio that is read here, at most `most_seconds`."""
        self._rate, self._heard_frames = log_mel.sampling_rate, log_mel.heard
        self._most_seconds, self._read_seconds = most_seconds, read_seconds
        self._most_body_bytes = 4 * log_mel.bins * max(
            log_mel.frames, read_seconds * log_mel.sampling_rate // log_mel.hop_length
        )  # fmt: skip
        self._deadline_s = deadline_s(read_seconds)
        configuration = {
            "log_mel": asdict(log_mel),
            "most_seconds": most_seconds,
            "read_seconds": read_seconds,
        }
        self._processes = ProcessOfEachThread("fusewire.audio.worker", configuration, _READS)

    def file(self, data: bytes, field: str) -> Heard:
        return self._heard(field, data, decoded=False)

    def samples(self, array: NDArray[Any], field: str) -> Heard:
        samples = checked_samples(array, self._rate, self._most_seconds * self._rate, field)
        if samples.size > self._read_seconds * self._rate:
            raise LongerAudio
        return self._heard(field, np.ascontiguousarray(samples).data.cast("B"), decoded=True)

    def kill(self) -> None:
        """See ProcessOfEachThread."""
        self._processes.kill()

    def close(self) -> None:
        """See ProcessOfEachThread."""
        self._processes.close()

    def _heard(self, field: str, body: bytes | memoryview, *, decoded: bool) -> Heard:
        answer = self._processes.call(
            field,
            {"field": field, "decoded": decoded},
            body,
            self._deadline_s,
            self._most_body_bytes,
        )
        if answer["result"] is None:
            raise LongerAudio
        features = answer["body"].view(np.float32).reshape(answer["result"]["shape"])
        samples = answer["result"]["samples"]
        return Heard(features, self._heard_frames(samples), samples, self._rate)


def deadline_s(seconds: int) -> int:
    """Returns how many seconds reading this much audio may take: ten times what it takes alone, as
    other work uses the cores too."""
    return 60 + seconds // 10

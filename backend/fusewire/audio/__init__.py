"""Converts audio to log-mel features, as transformers' feature extractor of Whisper computes them.
Uses no kernels and no model."""

from fusewire.audio.decode import decode_sound
from fusewire.audio.feature_config import read_log_mel
from fusewire.audio.log_mel import LogMel
from fusewire.audio.processes import AudioProcesses, LongerAudio
from fusewire.audio.reader import AudioReader, Heard, ReadsAudio
from fusewire.audio.samples import checked_samples

__all__ = [
    "AudioProcesses",
    "AudioReader",
    "Heard",
    "LogMel",
    "LongerAudio",
    "ReadsAudio",
    "checked_samples",
    "decode_sound",
    "read_log_mel",
]

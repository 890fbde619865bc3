"""Reads preprocessor_config.json strictly: a key that changes the features is either supported or
refused. A missing key has the default of transformers' WhisperFeatureExtractor. Older folders store
the mel filters too; they equal the filters that are computed from the sizes and are not read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusewire.audio.log_mel import LogMel
from fusewire.errors import CheckpointError, shown
from fusewire.weights import read_json

FILE = "preprocessor_config.json"
_NESTED_FILE, _NESTED_KEY = "processor_config.json", "feature_extractor"  # in newer folders
_CLASS = "WhisperFeatureExtractor"

# Key -> its default and its maximum.
_SIZES = {
    "feature_size": (80, 1024),
    "sampling_rate": (16000, 192000),
    "n_fft": (400, 1 << 14),
    "hop_length": (160, 1 << 14),
    "chunk_length": (30, 60),
}
# Key -> the value that does not change the features.
_HARMLESS: Mapping[str, Any] = {"dither": 0, "padding_value": 0, "padding_side": "right"}


def read_log_mel(folder: Path | str) -> LogMel:
    """Raises CheckpointError where the folder has no such file, or the file asks for other
    features."""
    values, file = _values(folder)
    got = values.get("feature_extractor_type", _CLASS)
    if got != _CLASS:
        raise _fault(file, "feature_extractor_type", got, _CLASS)
    for key, harmless in _HARMLESS.items():
        if values.get(key, harmless) != harmless:
            raise _fault(file, key, values[key], f"{harmless!r}")
    sizes = {}
    for key, (default, most) in _SIZES.items():
        size = values.get(key, default)
        if type(size) is not int or not 1 <= size <= most:
            raise _fault(file, key, size, f"a whole number in 1..{most}")
        sizes[key] = size
    if sizes["n_fft"] % 2 or sizes["n_fft"] > sizes["sampling_rate"]:
        raise _fault(file, "n_fft", sizes["n_fft"], "an even number of samples of up to a second")
    return LogMel(
        bins=sizes["feature_size"],
        sampling_rate=sizes["sampling_rate"],
        n_fft=sizes["n_fft"],
        hop_length=sizes["hop_length"],
        seconds=sizes["chunk_length"],
    )


def _values(folder: Path | str) -> tuple[Mapping[str, Any], str]:
    values = read_json(folder, FILE)
    if values is not None:
        return values, FILE
    nested = (read_json(folder, _NESTED_FILE) or {}).get(_NESTED_KEY)
    if not isinstance(nested, dict):
        raise CheckpointError(
            f"{FILE}: got no such file, wanted it to compute the features of audio; download it "
            "into the model's folder"
        )
    return nested, _NESTED_FILE


def _fault(file: str, key: str, got: object, wanted: str) -> CheckpointError:
    return CheckpointError(f"{file}: {key}: got {shown(got)}, wanted {wanted}")

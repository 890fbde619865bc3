"""A request for transcription: its tensors are checked, and the features of its audio computed.

The contract is that of `generate`, with an audio file or samples in place of a prompt.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from fusewire.audio import Heard, ReadsAudio
from fusewire.errors import InvalidInput, type_name
from fusewire.generation.parameter_reader import ParameterReader
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import AudioFeatures
from fusewire.tasks.contract import TRANSCRIBE, TRANSCRIBE_RETURNED, contract
from fusewire.tasks.generate import GenerateRequest, flag, returned, sent_parameters, single
from fusewire.tasks.parameters import Value

_INPUTS = tuple(tensor.name for tensor in contract(TRANSCRIBE)[0])
_AUDIO = ("audio", "samples")
# First bytes of audio files. The base64 of a file begins with none of them.
_FILES = (b"RIFF", b"fLaC", b"OggS", b"ID3", b"\xff")


@dataclass(frozen=True)
class TranscribeRequest(GenerateRequest):
    """A request whose prompt is audio of `duration` seconds."""

    duration: float = 0.0


def read(
    inputs: Mapping[str, NDArray[Any]],
    parameters: Mapping[str, Value],
    reader: ParameterReader,
    audio: ReadsAudio,
    begins: Callable[[GenerationParameters], object] = lambda asked: None,
) -> TranscribeRequest:
    """Returns the request of these tensors and parameters. Raises InvalidInput that names what is
    wrong, and the errors of `audio`. `begins` is called before the audio is read, which may take
    seconds; it raises an error where the client no longer waits. Segments need timestamps, which
    are requested unless the request sets them itself."""
    for name in inputs:
        if name not in _INPUTS:
            raise InvalidInput(name, "an unknown tensor", f"one of {', '.join(_INPUTS)}", "drop it")
    given = [name for name in _AUDIO if name in inputs]
    if len(given) != 1:
        got = " and ".join(given) or "no audio"
        raise InvalidInput(given[0] if given else "audio", got, "audio or samples", "send one")
    wanted = returned(inputs, TRANSCRIBE_RETURNED)
    values = sent_parameters(inputs, parameters)
    if "segments" in wanted and values.get("return_timestamps") is None:
        values["return_timestamps"] = True
    asked = reader.read(values)
    begins(asked)
    heard = _heard(given[0], inputs[given[0]], audio)
    return TranscribeRequest(
        AudioFeatures(heard.features, heard.frames),
        asked,
        given[0],
        flag(inputs, "stream", False),
        "",
        wanted,
        duration=heard.seconds,
        rates_silence="segments" in wanted,
    )


def _heard(field: str, array: NDArray[Any], reader: ReadsAudio) -> Heard:
    """Returns the audio of a tensor: a file, as bytes or in base64, or samples. Raises
    InvalidInput."""
    if field == "samples":
        return reader.samples(array, field)
    data = single({field: array}, field)
    if isinstance(data, str):
        data = data.encode(errors="replace")
    if not isinstance(data, bytes):
        got = type_name(data)
        raise InvalidInput(field, got, "bytes of an audio file", "send a file, or samples")
    if not data.startswith(_FILES):
        with contextlib.suppress(binascii.Error):  # `reader.file` refuses what is neither
            data = base64.b64decode(data, validate=True)
    return reader.file(data, field)

"""FLAC, MP3 and Ogg files, and WAV files of other numbers than PCM, by libsndfile: the only user of
soundfile."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from fusewire.audio.recording import REMEDY, Recording
from fusewire.errors import InvalidInput

# What a file of the format begins with -> libsndfile's names of it. It knows many more, which
# nobody sends and whose readers need not meet what strangers do.
_SIGNATURES = {
    b"fLaC": ("FLAC",),
    b"OggS": ("OGG",),
    b"ID3": ("MP3", "MPEG"),
    b"RIFF": ("WAV", "WAVEX"),
    **{bytes([0xFF, second]): ("MP3", "MPEG") for second in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3, 0xE2)},
}
WANTED = "a WAV, FLAC, MP3 or Ogg file"
_BLOCK = 1 << 16  # frames
_UNKNOWN = 1 << 62  # frames of a file that was written without knowing


def open_other(data: bytes, field: str) -> Recording:
    """InvalidInput for other formats, for what is damaged, and where soundfile is missing."""
    formats = next((of for begin, of in _SIGNATURES.items() if data.startswith(begin)), None)
    if formats is None:
        raise InvalidInput(field, f"{len(data)} bytes that are none", WANTED, REMEDY)
    soundfile = _soundfile(field, formats[0])
    try:
        file = soundfile.SoundFile(io.BytesIO(data))
    except (soundfile.LibsndfileError, ValueError, TypeError) as error:
        raise _damaged(data, error, field) from None
    if file.format not in formats:
        got = f"a {file.format} file that begins as {formats[0]}"
        raise InvalidInput(field, got, WANTED, REMEDY)
    frames = file.frames if 0 < file.frames < _UNKNOWN else None
    blocks = _blocks(file, data, field, soundfile)
    return Recording(file.samplerate, file.channels, frames, blocks)


def _blocks(
    file: object, data: bytes, field: str, soundfile: ModuleType
) -> Iterator[NDArray[np.float32]]:
    assert isinstance(file, soundfile.SoundFile)
    while True:
        try:
            block = file.read(_BLOCK, dtype="float32", always_2d=True)
        except (soundfile.LibsndfileError, ValueError, RuntimeError) as error:
            raise _damaged(data, error, field) from None
        if not len(block):
            return
        yield block


def _soundfile(field: str, kind: str) -> ModuleType:
    try:
        import soundfile
    except (ImportError, OSError):  # the package, or libsndfile beside it
        got = "a WAV file of no PCM, or damaged" if kind == "WAV" else f"a {kind} file"
        remedy = f"run pip install 'fusewire[audio]' on the server, or {REMEDY}"
        raise InvalidInput(field, got, "a WAV file of PCM without soundfile", remedy) from None
    return soundfile


def _damaged(data: bytes, error: Exception, field: str) -> InvalidInput:
    reason = str(getattr(error, "error_string", "")) or "it cannot be read"
    got = f"{len(data)} bytes that are damaged ({reason.strip().rstrip('.')})"
    return InvalidInput(field, got, WANTED, REMEDY)

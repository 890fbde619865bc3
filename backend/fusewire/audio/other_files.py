"""Reads FLAC, MP3 and Ogg files, and WAV files that are not PCM, with libsndfile. The only user of
soundfile."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from fusewire.audio.recording import REMEDY, Recording
from fusewire.audio.wave_file import whole_frames
from fusewire.errors import InvalidInput

# First bytes of a file -> libsndfile's names of its format. libsndfile reads many more formats.
# They are not needed, and their readers should not be exposed to untrusted files.
_SIGNATURES = {
    b"fLaC": ("FLAC",),
    b"OggS": ("OGG",),
    b"ID3": ("MP3", "MPEG"),
    b"RIFF": ("WAV", "WAVEX"),
    **{bytes([0xFF, second]): ("MP3", "MPEG") for second in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3, 0xE2)},
}
WANTED = "a WAV, FLAC, MP3 or Ogg file"
_BLOCK = 1 << 16  # frames
# The least share of a file without a length that the audio takes; tags may follow it.
_MOST_OF_FILE = 7 / 8
_UNKNOWN = 1 << 62  # frames of a file whose writer did not know its length
# Two MPEG frames: by this many samples the headers of some encoders exceed the true length.
_MORE_IN_MP3 = 2 * 1152
# The Xing or LAME header is within this many bytes of the first frame of an MP3 file: after a
# header of 4 bytes and the side information.
_XING_WITHIN = 4 + 32 + 2 + 4  # a checksum, and its name


def open_other(data: bytes, field: str) -> Recording:
    """Raises InvalidInput for other formats, for damaged files, and where soundfile is not
    installed."""
    formats = next((of for begin, of in _SIGNATURES.items() if data.startswith(begin)), None)
    if formats is None:
        raise InvalidInput(field, f"{len(data)} bytes of another format", WANTED, REMEDY)
    soundfile, source = _soundfile(field, formats[0]), io.BytesIO(data)
    try:
        file = soundfile.SoundFile(source)
    except (soundfile.LibsndfileError, ValueError, TypeError) as error:
        raise _damaged(data, error, field) from None
    if file.format not in formats:
        got = f"a {file.format} file that begins as {formats[0]}"
        raise InvalidInput(field, got, WANTED, REMEDY)
    frames = file.frames if 0 < file.frames < _UNKNOWN else None
    least = 0 if frames is None else frames
    if file.format in _SIGNATURES[b"ID3"]:
        if not _says_its_length(data):
            frames, least = None, 0
        least -= _MORE_IN_MP3
    elif file.format == "OGG":
        least = 0  # libsndfile computes the length from the data that exists
    elif frames is not None and data.startswith(b"RIFF"):
        frames = least = whole_frames(data, frames)
    blocks = _blocks(file, data, field, soundfile)
    if frames is None:
        blocks = _to_the_end(blocks, source, len(data), field)
    return Recording(file.samplerate, file.channels, frames, blocks, least)


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


def _says_its_length(data: bytes) -> bool:
    """Whether an MP3 file has a header with its length. Without one libsndfile estimates the length
    from the bit rate of the first frame."""
    begin = 0
    if data.startswith(b"ID3"):  # ten bytes, with the size of the tag in 7 bits per byte
        size = data[6:10]
        begin = 10 + sum(byte << 7 * place for place, byte in enumerate(reversed(size)))
    first = data[begin : begin + _XING_WITHIN]
    return b"Xing" in first or b"Info" in first


def _to_the_end(
    blocks: Iterator[NDArray[np.float32]], source: io.BytesIO, size: int, field: str
) -> Iterator[NDArray[np.float32]]:
    """Passes all blocks on. Raises InvalidInput where libsndfile stopped long before the end of the
    file, because its estimate of the length is too small."""
    yield from blocks
    if source.tell() < _MOST_OF_FILE * size:
        got = f"a file without a length, of which {source.tell()} bytes of {size} are read"
        raise InvalidInput(field, got, "one that says its length", REMEDY)


def _soundfile(field: str, kind: str) -> ModuleType:
    try:
        import soundfile
    except (ImportError, OSError):  # no package, or no libsndfile
        got = "a WAV file of no PCM, or damaged" if kind == "WAV" else f"a {kind} file"
        remedy = f"run pip install 'fusewire[audio]' on the server, or {REMEDY}"
        raise InvalidInput(field, got, "a WAV file of PCM without soundfile", remedy) from None
    return soundfile


def _damaged(data: bytes, error: Exception, field: str) -> InvalidInput:
    reason = str(getattr(error, "error_string", "")) or "it cannot be read"
    got = f"{len(data)} bytes that are damaged ({reason.strip().rstrip('.')})"
    return InvalidInput(field, got, WANTED, REMEDY)

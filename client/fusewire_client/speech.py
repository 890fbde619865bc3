"""Plans for transcribing speech."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from .calls import Plan
from .errors import InvalidArgument, type_name
from .generation import asked_for, generated
from .plans import Arrays, Settings

Audio = bytes | str | Path | BinaryIO | np.ndarray


def transcribe(
    settings: Settings,
    /,
    audio: Audio | Sequence[Audio],
    *,
    language: str | None = None,
    task: str | None = None,
    return_timestamps: bool | Literal["word"] | None = None,
    details: bool = False,
    stream: bool = False,
    max_new_tokens: int | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Any,
) -> Plan[Any]:
    """Transcribes the speech of a recording, or of each recording of a list.

    Args:
        audio: An audio file (its path, its bytes, or open for reading in binary), or float32
            samples [n] between -1 and 1 at 16 kHz; or a list of these, which run concurrently,
            answered in order.
        language: The spoken language, by its code or English name. Default: it is detected.
        task: `transcribe`, or `translate` into English.
        return_timestamps: Find when each part of the text was spoken, with `details` in `segments`;
            "word": each word too, in their `words`.
        details: Return `Generated` with `language` and `segments` instead of texts.
        stream: As for `generate`, for one recording; one of more than 30 s has a piece per window.
        max_new_tokens: Maximum number of tokens of each text, or of each window of 30 s.
            Default: the model's.
        model: Its name; default: the server's only model that transcribes.
        version: Version of the model; default: the server's choice.
        timeout_s: Timeout of this call, or of each recording of a list, in seconds; default: the
            client's.
        **parameters: Further parameters of generation (num_beams, temperature, …), checked by the
            server.

    Returns:
        As `generate`.

    Raises:
        ClientError: With the server's message.
    """
    several = isinstance(audio, Sequence) and not isinstance(audio, _ONE)
    many: Sequence[Any] = audio if several else [audio]  # type: ignore[assignment]
    inputs = [_input(one, f"audio[{i}]" if several else "audio") for i, one in enumerate(many)]
    asked = asked_for(
        details, stream, model, version, timeout_s, parameters,
        language=language, task=task, return_timestamps=return_timestamps,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    return (yield from generated(settings, inputs, several, asked._replace(audio=True)))


_ONE = (bytes, bytearray, str)


def _input(audio: object, name: str) -> Arrays:
    """Returns the input tensor of a recording. Files are sent as base64, which HTTP's JSON can
    hold."""
    if isinstance(audio, np.ndarray):
        if audio.ndim != 1 or audio.dtype.kind != "f":
            got = f"{audio.dtype} of shape {list(audio.shape)}"
            wanted = "float32 samples [n] of one channel, between -1 and 1"
            raise InvalidArgument(f"{name}: got {got}, wanted {wanted}; convert it")
        return {"samples": audio.astype(np.float32)}
    if isinstance(audio, (str, Path)):
        try:
            data = Path(audio).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: the path has a zero byte
            got = f"{getattr(error, 'strerror', None) or error}"
            raise InvalidArgument(f"{name}: got '{got}' for {audio}, wanted a file") from None
    elif hasattr(audio, "read"):  # an open file
        data = audio.read()
        if not isinstance(data, bytes):
            got, wanted = "a file that is open as text", "one that is open in binary"
            raise InvalidArgument(f'{name}: got {got}, wanted {wanted}; open it with mode "rb"')
    elif isinstance(audio, (bytes, bytearray)):
        data = bytes(audio)
    else:
        got = type_name(audio)
        wanted = "an audio file (its path, its bytes, or open in binary), or samples (numpy)"
        raise InvalidArgument(f"{name}: got {got}, wanted {wanted}; convert it")
    return {"audio": np.array([base64.b64encode(data)], np.object_)}

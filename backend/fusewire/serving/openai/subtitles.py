"""Transcriptions with times, as SubRip (srt) and WebVTT files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """A text from `start` to `end`, in seconds. None: from the end of the previous text, or until
    the next text or the end of the audio."""

    start: float | None
    end: float | None
    text: str


def srt(said: Sequence[Said], duration: float) -> str:
    cues = [
        f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n"
        for number, (start, end, text) in enumerate(_cues(said, duration), 1)
    ]
    return "\n".join(cues) + "\n"


def vtt(said: Sequence[Said], duration: float) -> str:
    cues = [
        f"{_clock(start, '.')} --> {_clock(end, '.')}\n{text}\n"
        for start, end, text in _cues(said, duration)
    ]
    return "\n".join(["WEBVTT\n", *cues]) + "\n"


def spans(said: Sequence[Said], duration: float) -> list[tuple[float, float]]:
    """Returns the start and end of each segment, in audio of this duration."""
    found, before = [], 0.0
    for place, each in enumerate(said):
        start = before if each.start is None else each.start
        follows = said[place + 1].start if place + 1 < len(said) else None
        end = each.end if each.end is not None else follows if follows is not None else duration
        before = max(start, end)
        found.append((start, before))
    return found


def _cues(said: Sequence[Said], duration: float) -> list[tuple[float, float, str]]:
    cues = []
    for (start, end), each in zip(spans(said, duration), said, strict=True):
        # An arrow would begin a new cue, and an empty line would end this one.
        text = "\n".join(filter(None, map(str.strip, each.text.splitlines())))
        cues.append((start, end, text.replace("-->", "->")))
    return cues


def _clock(seconds: float, point: str) -> str:
    thousandths = round(1000 * seconds)
    minutes, rest = divmod(thousandths, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"

"""Transcribes audio files, with the time of each segment.

    python examples/transcribe.py MODEL FILE...

MODEL is a folder of Whisper or a Hugging Face id, as openai/whisper-tiny. Files: WAV of PCM at 16
kHz; with the extra fusewire[audio] other rates too, and FLAC, MP3 and Ogg.
"""

from __future__ import annotations

import sys

import fusewire


def main(model: str, *files: str) -> None:
    with fusewire.Transcriber(model) as transcriber:
        found = transcriber.transcribe(files, return_timestamps=True)
    for file, transcript in zip(files, found, strict=True):
        print(f"{file}: {transcript.language or 'the language of the model'}")
        for segment in transcript.segments or ():
            print(f"{clock(segment.start)} - {clock(segment.end)} {segment.text}")


def clock(seconds: float | None) -> str:
    """Formats a time; None where no timestamp tells it."""
    if seconds is None:
        return " " * 7
    return f"{int(seconds) // 60:2}:{seconds % 60:04.1f}"


if __name__ == "__main__":
    main(*sys.argv[1:])

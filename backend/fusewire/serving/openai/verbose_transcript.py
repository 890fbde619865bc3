"""A transcription with all details: OpenAI's `verbose_json`."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from fusewire.serving.openai.subtitles import Said, spans

_OF_A_SEGMENT = ("text", "tokens", "avg_logprob", "no_speech_prob")


def verbose_words(segments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the words of the model's segments."""
    words = [word for each in segments for word in each.get("words", ())]
    return [{**each, "word": each["word"].strip()} for each in words]


def verbose_segments(
    segments: Sequence[Mapping[str, Any]], duration: float, temperature: float
) -> list[dict[str, Any]]:
    """Returns the model's segments, in audio of this duration. `temperature`: for windows without
    one. Segments of one window share the statistics of its text."""
    said = [Said(each["start"], each["end"], each["text"]) for each in segments]
    ratios = _compression_ratios(segments)
    return [
        {
            "id": index,
            "seek": each["seek"],
            "start": start,
            "end": end,
            "temperature": each.get("temperature", temperature),
            "compression_ratio": ratios[each["seek"]],
            **{name: each[name] for name in _OF_A_SEGMENT if name in each},
        }
        for index, (each, (start, end)) in enumerate(
            zip(segments, spans(said, duration), strict=True)
        )
    ]


def _compression_ratios(segments: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Returns the factor by which zlib compresses the text of each window, by the frame at which it
    begins. It differs from the ratio by which the model judges its texts, which is computed from
    tokens."""
    texts: defaultdict[int, str] = defaultdict(str)
    for each in segments:
        texts[each["seek"]] += each["text"]
    written = {seek: text.strip().encode() for seek, text in texts.items()}
    return {seek: len(text) / len(zlib.compress(text)) for seek, text in written.items()}

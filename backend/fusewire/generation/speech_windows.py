"""How far audio is written down by the text of one window of it: sequential decoding, as Whisper
has it (Radford et al., 2022, section 3.8) and transformers' `generate` after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewire.generation.speech import Segment, SpeechTokens


@dataclass(frozen=True)
class Window:
    """What is kept of a window's tokens, without the one that ends them; and the positions behind
    its beginning at which the next one begins, None: behind all of it."""

    token_ids: Sequence[int]
    advance: int | None
    ends: Sequence[float] | None = None  # of the tokens, in seconds behind its beginning


def window_of(
    token_ids: Sequence[int], speech: SpeechTokens, ends: Sequence[float] | None = None
) -> Window:
    """Up to the last pair of timestamps, the end of a part and the beginning of the next, where the
    window cuts off what is said behind it; all of it where there is no pair, or a timestamp alone
    ends the text."""
    ids = [*token_ids]
    if ids and ids[-1] == speech.eos:
        del ids[-1]
    stamps = [token >= speech.timestamp_begin for token in ids]
    pairs = [place for place in range(1, len(ids)) if stamps[place - 1] and stamps[place]]
    if not pairs or stamps[-2:] == [False, True]:
        return Window(ids, None, ends and ends[: len(ids)])
    # A text's timestamps rise, and the first begins it: this one is not the window's beginning.
    kept = pairs[-1] + 1
    return Window(ids[:kept], ids[kept - 2] - speech.timestamp_begin, ends and ends[:kept])


def segments_at(
    window: Window, begin: float, seconds: float, speech: SpeechTokens
) -> list[Segment]:
    """What a window says, in seconds of the audio, in which it begins at `begin` and has `seconds`.
    A part without an end ends with it."""
    found = []
    for each in speech.segments(window.token_ids, window.ends):
        start = begin if each.start is None else begin + each.start
        end = begin + (seconds if each.end is None else each.end)
        times = each.times and [
            (round(begin + first, 6), round(begin + last, 6)) for first, last in each.times
        ]
        found.append(Segment(round(start, 6), round(end, 6), each.token_ids, times))
    return found

"""What is kept of a window's text, and where the next one begins."""

from __future__ import annotations

import pytest
from fusewire.generation.speech import Segment, SpeechTokens
from fusewire.generation.speech_windows import Window, segments_at, window_of

EOS, BEGIN = 50, 60
SPEECH = SpeechTokens({}, {}, BEGIN - 1, 5, 0.02, EOS)


def at(seconds: float) -> int:
    return BEGIN + round(seconds / 0.02)


@pytest.mark.parametrize(
    ("tokens", "kept", "advance"),
    [
        ([at(0), 1, 2, at(0.4), at(0.4), 3, EOS], 5, 20),
        ([at(0), 1, 2, at(0.4), at(0.5), 3, at(0.7), at(0.8), EOS], 8, 35),
        ([at(0), 1, at(0.4), at(0.4), 3, at(0.9), EOS], 6, None),
        ([at(0.2), 1, 2, at(0.6), EOS], 4, None),
        ([at(0), 1, 2, EOS], 3, None),
        ([at(0), 1, 2], 3, None),
        ([1, 2], 2, None),
        ([EOS], 0, None),
        ([], 0, None),
    ],
    ids=["cut", "pair at the end", "ended", "one part", "open", "no end", "words", "none", "empty"],
)
def test_a_text_is_kept_up_to_its_last_pair_of_timestamps(tokens, kept, advance):
    assert window_of(tokens, SPEECH) == Window(tokens[:kept], advance)


def test_segments_have_the_times_of_the_whole_audio():
    window = Window([at(0.1), 1, at(0.4), at(0.5), 2], None)
    assert segments_at(window, 30.0, 0.98, SPEECH) == [
        Segment(30.1, 30.4, [1]),
        Segment(30.5, 30.98, [2]),
    ]
    assert segments_at(Window([3], None), 2.5, 1.0, SPEECH) == [Segment(2.5, 3.5, [3])]

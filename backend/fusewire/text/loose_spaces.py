"""The spaces that transformers' `clean_up_tokenization` removes, before punctuation and English
short forms, from a whole text or a stream."""

from __future__ import annotations

# In transformers' order: each replacement applies to the result of the previous one.
_LOOSE_SPACES = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def tighten(text: str) -> str:
    for loose, tight in _LOOSE_SPACES:
        text = text.replace(loose, tight)
    return text


class TighteningStream:
    """`tighten` for a text that comes in pieces. The returned pieces concatenate to the same
    text."""

    def __init__(self) -> None:
        self._steps = [_Replacement(loose, tight) for loose, tight in _LOOSE_SPACES]

    def feed(self, text: str) -> str:
        for step in self._steps:
            text = step.feed(text)
        return text

    def flush(self) -> str:
        text = ""
        for step in self._steps:
            text = step.feed(text) + step.flush()
        return text


class _Replacement:
    """str.replace for a stream. An end of the text that may begin a match is held back."""

    def __init__(self, loose: str, tight: str) -> None:
        self._loose = loose
        self._tight = tight
        self._held = ""

    def feed(self, text: str) -> str:
        *parts, rest = (self._held + text).split(self._loose)
        held = next(
            size
            for size in range(len(self._loose) - 1, -1, -1)
            if rest.endswith(self._loose[:size])
        )
        self._held = rest[len(rest) - held :]
        return self._tight.join([*parts, rest[: len(rest) - held]])

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

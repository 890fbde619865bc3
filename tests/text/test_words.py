"""Tokens are joined to words as by transformers' tokenizer of Whisper."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fusewire.text.words import words_of
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

TEXTS = [
    " And so, my fellow Americans: ask not!",
    ' He said "well (yes) — no…" and ¡left! $5.00 it\'s',
    "Größe “Straße” naïve  two  spaces\nline",
    "今日は、いい天気ですね。「はい」と言った！",  # noqa: RUF001
    " ภาษาไทย 🙂🙃 mixed 中文, and [end]",
    " - ( a ) ' ' .",
]


class Vocabulary:
    """Tokens of bytes, as in a byte-level tokenizer, with the methods that transformers calls."""

    language = None
    eos_token_id = 10**6

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def decode(self, ids: list[int], **_: Any) -> str:
        return b"".join(self.pieces[token] for token in ids).decode(errors="replace")


def cut(data: bytes, chosen: random.Random) -> list[bytes]:
    """Splits bytes into pieces of one to five bytes, also within characters."""
    pieces = []
    while data:
        length = chosen.randint(1, 5)
        pieces.append(data[:length])
        data = data[length:]
    return pieces


@pytest.mark.parametrize("language", ["english", "japanese"])
@pytest.mark.parametrize("text", TEXTS)
def test_words_are_those_of_transformers(text, language):
    chosen = random.Random(len(text))
    for _ in range(20):
        pieces = cut(text.encode(), chosen)
        vocabulary, ids = Vocabulary(pieces), list(range(len(pieces)))
        words, _, indices = _combine_tokens_into_words(vocabulary, ids, language)
        found = words_of(ids, vocabulary.decode, spaced=language == "english")
        assert [each.text for each in found] == words
        assert [list(range(each.begin, each.end)) for each in found] == indices
        assert "".join(each.text for each in found) == text


def test_broken_characters_are_a_word_of_their_own_text():
    pieces = [b" a", b"\xe4", b"\xbb", b" b", b"\xff"]
    vocabulary = Vocabulary(pieces)
    words, _, _ = _combine_tokens_into_words(vocabulary, list(range(5)), "english")
    assert [each.text for each in words_of(range(5), vocabulary.decode, spaced=True)] == words


def test_no_tokens_are_no_words():
    assert words_of([], Vocabulary([]).decode, spaced=True) == []

"""The tokens that spell a word which is not to be generated.

A word goes on from what is before it, or follows a space; vocabularies spell the two differently,
and both are forbidden (as vLLM does). Tokenizers of SentencePiece's kind put a space in front of
every text themselves, which hides the first spelling, so that is switched off here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import tokenizers

from fusewire.errors import InvalidInput
from fusewire.text.tokenizer import Tokenizer
from fusewire.text.tokenizer_library import TokenizerFault


class BadWords:
    """What a tokenizer's vocabulary makes of words inside a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """`tokenizer`: of the texts that the model writes (Tokenizer.load_target)."""
        self._tokenizer = tokenizer.inside_texts() or _inside_texts(tokenizer)

    def token_ids(self, words: Iterable[str]) -> list[list[int]]:
        """The spellings of all words; InvalidInput for one that no tokens spell."""
        return [self._spell(word, text) for word in words for text in (word, f" {word}")]

    def _spell(self, word: str, text: str) -> list[int]:
        try:
            (encoded,) = self._tokenizer.encode([text], offsets=True, special_tokens=False)
        except TokenizerFault:
            raise _not_spelled(word) from None
        # A vocabulary may lack a character: other tokens than those of the word would be forbidden.
        read = {at for begin, end in encoded.offsets for at in range(begin, end)}
        missed = self._tokenizer.has_offsets and any(
            not text[at].isspace() for at in range(len(text)) if at not in read
        )
        unk = self._tokenizer.unk_id
        unknown = unk in encoded.ids and self._tokenizer.piece(unk) not in word
        if not encoded.ids or missed or unknown:
            raise _not_spelled(word)
        return list(encoded.ids)


def _inside_texts(tokenizer: Tokenizer) -> Tokenizer:
    backend = tokenizer.backend
    parts = {"normalizer": backend.normalizer, "pre_tokenizer": backend.pre_tokenizer}
    before = {name: part and json.loads(part.__getstate__()) for name, part in parts.items()}
    inside = {name: _without_a_space_in_front(part) for name, part in before.items()}
    if inside == before:
        return tokenizer
    whole = json.loads(backend.to_str()) | inside
    unk_token = None if tokenizer.unk_id is None else tokenizer.piece(tokenizer.unk_id)
    backend = tokenizers.Tokenizer.from_str(json.dumps(whole))
    return Tokenizer(backend, {"unk_token": unk_token})


def _not_spelled(word: str) -> InvalidInput:
    wanted = "words that the model's vocabulary can spell"
    return InvalidInput("bad_words", repr(word), wanted, "remove it, as it cannot be generated")


def _without_a_space_in_front(part: Any) -> Any:
    """A normalizer or pre-tokenizer, as tokenizer.json has it, that adds nothing to a text."""
    if not isinstance(part, dict):
        return part
    changed = dict(part)
    if part["type"] == "Prepend":
        return None
    if part["type"] == "Metaspace":
        changed["prepend_scheme"] = "never"
    if part["type"] == "ByteLevel":
        changed["add_prefix_space"] = False
    for steps in ("normalizers", "pretokenizers"):
        if steps in part:
            kept = map(_without_a_space_in_front, part[steps])
            changed[steps] = [step for step in kept if step is not None]
    return changed

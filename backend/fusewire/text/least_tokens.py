"""How many tokens a text has at least, without tokenising it.

Tokenising takes seconds and gigabytes for texts of megabytes, most of which could be refused by
their length alone. Two rules never say more than there is. Where a vocabulary spells everything
(byte-level BPE, byte fallback), a token holds no more characters than the longest entry. Where
words are cut at spaces (WordPiece, WordLevel), each has a token. Other tokenizers (Unigram: any
number of unknown characters is one token) have no such rule; nor has a normaliser that takes away
what it likes.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

# Characters. Shorter texts are tokenised in milliseconds, so they may as well be counted.
WORTH_WHILE = 1 << 14
# Characters that normal form C makes one of: most of a canonical decomposition, in any Unicode.
_COMPOSED = 4

# By the names of tokenizer.json: what takes no character away but white space, ...
_COMPOSING = {"NFC", "NFKC"}
_KEEPING = {*_COMPOSING, "NFD", "NFKD", "Lowercase", "Prepend", "Strip"}
# ... and what takes marks and control characters, but no letter nor digit of ASCII.
_KEEPING_WORDS = {*_COMPOSING, "NFD", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt"}
_KEEPING_WORDS |= {"BertNormalizer"}
_CUTTING_AT_SPACES = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_CUTTING = {*_CUTTING_AT_SPACES, "ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}
_CUSTOM = (normalizers.Normalizer, pre_tokenizers.PreTokenizer)
_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}

_CHARACTERS = re.compile(r"\S+")
# From a letter or digit to the next space.
_WORDS = re.compile(r"[0-9A-Za-z][^ \t\n\r]*")
_IDEOGRAPH = "\u4e00-\u9fa5"  # those of the first Unicode: no table lacks them
_WORDS_AND_IDEOGRAPHS = re.compile(rf"[{_IDEOGRAPH}]|[0-9A-Za-z][^ \t\n\r{_IDEOGRAPH}]*")


class LeastTokens:
    """The rule of one tokenizer, as it is when this is made."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._units: re.Pattern[str] | None = None  # what is counted: words, or
        self._by_character = False
        self._most = 1  # of them in one token
        steps = _parts(backend.normalizer, "normalizers")
        cutters = _parts(backend.pre_tokenizer, "pretokenizers")
        if not all(map(_cuts, cutters)):
            return
        added = [token.content for token in backend.get_added_tokens_decoder().values()]
        if backend.normalizer is not None:
            added += [backend.normalizer.normalize_str(content) for content in added]
        if _spells_everything(backend, cutters) and all(map(_keeps, steps)):
            self._units, self._by_character = _CHARACTERS, True
            vocabulary = backend.get_vocab(with_added_tokens=False)
            composed = any(part["type"] in _COMPOSING for part in steps)
            self._most = max(map(len, [*vocabulary, *added])) * (_COMPOSED if composed else 1)
        elif isinstance(backend.model, (models.WordPiece, models.WordLevel)):
            types = {part["type"] for part in steps}
            if types <= _KEEPING_WORDS and any(c["type"] in _CUTTING_AT_SPACES for c in cutters):
                apart = any(part.get("handle_chinese_chars") for part in steps)
                self._units = _WORDS_AND_IDEOGRAPHS if apart else _WORDS
                self._most = 1 + max((len(re.findall(r"\s", text)) for text in added), default=0)

    def of(self, text: str, enough: int) -> int:
        """At most as many as `text` has, its special tokens apart. Counted up to `enough` and one
        more."""
        if self._units is None:
            return 0
        units = 0
        for unit in self._units.finditer(text):
            units += unit.end() - unit.start() if self._by_character else 1
            if units > enough * self._most:
                break
        return -(-units // self._most)


def _parts(component: Any, inside: str) -> list[dict[str, Any]]:
    """A component of a tokenizer, or those that it is a sequence of, as tokenizer.json has them."""
    if component is None:
        return []
    if type(component) in _CUSTOM:  # which cannot be written
        return [{"type": "Custom"}]
    parts: list[dict[str, Any]] = []
    waiting = [json.loads(component.__getstate__())]
    while waiting:
        part = waiting.pop()
        if part["type"] == "Sequence":
            waiting += part[inside]
        else:
            parts.append(part)
    return parts


def _cuts(part: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer takes nothing away but white space."""
    if part["type"] in ("Split", "Punctuation"):
        return bool(part["behavior"] != "Removed")
    return part["type"] in _CUTTING


def _keeps(part: dict[str, Any]) -> bool:
    """Whether a normaliser makes no fewer characters, but for _COMPOSING and white space."""
    if part["type"] == "Replace":
        replaced = part["pattern"].get("String")
        return replaced is not None and _dark(part["content"]) >= _dark(replaced)
    return part["type"] in _KEEPING


def _dark(text: str) -> int:
    """Characters other than white space."""
    return sum(map(len, text.split()))


def _spells_everything(backend: tokenizers.Tokenizer, cutters: list[dict[str, Any]]) -> bool:
    """Whether each character of a text is in some token, never in one for many unknown ones."""
    if not isinstance(backend.model, models.BPE):
        return False
    needed: set[str] | None = None
    if any(part["type"] == "ByteLevel" for part in cutters):
        needed = set(ByteLevel.alphabet())
    elif backend.model.byte_fallback:
        needed = _BYTES
    return needed is not None and all(backend.model.token_to_id(one) is not None for one in needed)

"""Computes a lower bound of the number of tokens of a text, without tokenising it.

Tokenising a text of megabytes takes seconds and gigabytes, and most such texts can be refused by
their length alone. There are two rules. Where a vocabulary covers every text (byte-level BPE, byte
fallback), a token has no more characters than the longest entry. Where words are split at spaces
(WordPiece, WordLevel), each word has at least one token. Other tokenizers have no such bound (with
Unigram, any number of unknown characters is one token); nor has a normaliser that may remove
arbitrary text.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

# Characters. Shorter texts are tokenised in milliseconds, so the bound is not needed.
WORTH_WHILE = 1 << 14
# Maximum number of characters that normal form C composes to one: the longest canonical
# decomposition in any version of Unicode.
_COMPOSED = 4

# Names in tokenizer.json of normalisers that remove no characters but white space, ...
_COMPOSING = {"NFC", "NFKC"}
_KEEPING = {*_COMPOSING, "NFD", "NFKD", "Lowercase", "Prepend", "Strip"}
# ... and of those that remove marks and control characters, but no ASCII letter or digit.
_KEEPING_WORDS = {*_COMPOSING, "NFD", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt"}
_KEEPING_WORDS |= {"BertNormalizer"}
_CUTTING_AT_SPACES = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_CUTTING = {*_CUTTING_AT_SPACES, "ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}
_CUSTOM = (normalizers.Normalizer, pre_tokenizers.PreTokenizer)
_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}

_CHARACTERS = re.compile(r"\S+")
# From a letter or digit to the next space.
_WORDS = re.compile(r"[0-9A-Za-z][^ \t\n\r]*")
_IDEOGRAPH = "\u4e00-\u9fa5"  # those of the first Unicode, which are in every table
_WORDS_AND_IDEOGRAPHS = re.compile(rf"[{_IDEOGRAPH}]|[0-9A-Za-z][^ \t\n\r{_IDEOGRAPH}]*")


class LeastTokens:
    """The bound of one tokenizer, in its state at the time of construction."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._units: re.Pattern[str] | None = None  # the words or characters to count, or None
        self._by_character = False
        self._most = 1  # maximum number of units in one token
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
        """Returns a lower bound of the number of tokens of `text`, without special tokens. Counting
        stops above `enough`."""
        if self._units is None:
            return 0
        units = 0
        for unit in self._units.finditer(text):
            units += unit.end() - unit.start() if self._by_character else 1
            if units > enough * self._most:
                break
        return -(-units // self._most)


def _parts(component: Any, inside: str) -> list[dict[str, Any]]:
    """Returns a component of a tokenizer, or the components of a sequence, as in tokenizer.json."""
    if component is None:
        return []
    if type(component) in _CUSTOM:  # cannot be serialised
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
    """Whether a pre-tokenizer removes nothing but white space."""
    if part["type"] in ("Split", "Punctuation"):
        return bool(part["behavior"] != "Removed")
    return part["type"] in _CUTTING


def _keeps(part: dict[str, Any]) -> bool:
    """Whether a normaliser never reduces the number of characters, except for _COMPOSING and white
    space."""
    if part["type"] == "Replace":
        replaced = part["pattern"].get("String")
        return replaced is not None and _dark(part["content"]) >= _dark(replaced)
    return part["type"] in _KEEPING


def _dark(text: str) -> int:
    """Returns the number of characters that are not white space."""
    return sum(map(len, text.split()))


def _spells_everything(backend: tokenizers.Tokenizer, cutters: list[dict[str, Any]]) -> bool:
    """Whether every character of a text is covered by some token, and no token covers several
    unknown ones."""
    if not isinstance(backend.model, models.BPE):
        return False
    needed: set[str] | None = None
    if any(part["type"] == "ByteLevel" for part in cutters):
        needed = set(ByteLevel.alphabet())
    elif backend.model.byte_fallback:
        needed = _BYTES
    return needed is not None and all(backend.model.token_to_id(one) is not None for one in needed)

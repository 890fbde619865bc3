"""A text is rejected before it is tokenised only where it could never fit."""

from __future__ import annotations

from functools import cache

import pytest
from fusewire.text.least_tokens import LeastTokens
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    models,
    normalizers,
    pre_tokenizers,
)
from tokenizers import Tokenizer as Backend

from tests.reference import SENTENCES, tiny_tokenizer

BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
SPACE = normalizers.Replace(" ", "▁")
WORDS = {"[UNK]": 0, "a": 1, "##b": 2, "of": 3, "the": 4, "4": 5, "中": 6}


def bytewise(normalizer=None, *before) -> Backend:
    """Returns a byte-level tokenizer with long tokens, and one token that includes the spaces
    around it."""
    alphabet = {one: index for index, one in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    merges = [("a", "a"), ("aa", "aa"), ("Ã", "©"), ("Ġ", "Ġ")]
    for left, right in merges:
        alphabet[left + right] = len(alphabet)
    backend = Backend(models.BPE(alphabet, merges))
    if normalizer is not None:
        backend.normalizer = normalizer
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*before, cut]) if before else cut
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, special=True)])
    backend.add_tokens([AddedToken("aé é", normalized=True)])
    return backend


def composed() -> Backend:
    """Returns a tokenizer in which a letter with three marks is one token."""
    alphabet = {one: index for index, one in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ((letter, _),) = cut.pre_tokenize_str("\u1fa7")
    first, second, third = letter
    alphabet |= {first + second: 256, letter: 257}
    backend = Backend(models.BPE(alphabet, [(first, second), (first + second, third)]))
    backend.normalizer, backend.pre_tokenizer = normalizers.NFC(), cut
    return backend


def spelled(normalizer) -> Backend:
    """Returns a tokenizer of Llama's kind: pieces, and bytes for characters without one."""
    pieces = {**BYTES, "▁": 256, "a": 257, "aa": 258, "▁▁": 259}
    model = models.BPE(pieces, [("a", "a"), ("▁", "▁")], byte_fallback=True, fuse_unk=True)
    backend = Backend(model)
    backend.normalizer = normalizer
    return backend


def wordwise(model, normalizer, cut) -> Backend:
    backend = Backend(model)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = cut
    backend.add_tokens(["of the", AddedToken("[MASK]", lstrip=True)])
    return backend


WITH_RULE = {
    "wordpiece": lambda: tiny_tokenizer("wordpiece"),
    "byte_bpe": lambda: tiny_tokenizer("byte_bpe"),
    "bytes": bytewise,
    "bytes, composed": composed,
    "bytes, compatible": lambda: bytewise(
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()]),
        pre_tokenizers.Split(Regex(r"\s+"), "isolated"),
        pre_tokenizers.Digits(individual_digits=True),
    ),
    "byte fallback": lambda: spelled(normalizers.Sequence([normalizers.Prepend("▁"), SPACE])),
    "short words": lambda: wordwise(
        models.WordPiece(WORDS, unk_token="[UNK]", max_input_chars_per_word=3),
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    ),
    "ideographs together": lambda: wordwise(
        models.WordPiece(WORDS, unk_token="[UNK]"),
        normalizers.BertNormalizer(handle_chinese_chars=False, lowercase=False),
        pre_tokenizers.BertPreTokenizer(),
    ),
    "whole words": lambda: wordwise(
        models.WordLevel(WORDS, unk_token="[UNK]"), None, pre_tokenizers.WhitespaceSplit()
    ),
}
WITHOUT_RULE = {
    "unigram": lambda: tiny_tokenizer("unigram"),
    "unknown characters in one": lambda: Backend(
        models.BPE({"a": 0, "?": 1}, [], unk_token="?", fuse_unk=True)
    ),
    "spaces collapsed": lambda: spelled(normalizers.Replace(Regex(r"\w+"), "a")),
    "letters replaced by a space": lambda: bytewise(normalizers.Replace("aa", "  ")),
    "letters removed": lambda: bytewise(None, pre_tokenizers.Split("a", "removed")),
    "accents removed": lambda: bytewise(normalizers.StripAccents()),
    "words removed": lambda: wordwise(
        models.WordLevel(WORDS, unk_token="[UNK]"),
        None,
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split("the", "removed"), pre_tokenizers.WhitespaceSplit()]
        ),
    ),
}


@cache
def backend_and_rule(name: str) -> tuple[Backend, LeastTokens]:
    backend = (WITH_RULE | WITHOUT_RULE)[name]()
    return backend, LeastTokens(backend)


COMPOSED = "\u03c9\u0314\u0342\u0345"  # four characters that NFC composes to one
PIECES = st.sampled_from(
    [
        *"aAbé4중中文ﷺﬃ ᄀ", "a" * 9, "é" * 3, " ", "  ", "\t", "\n", "\r", "\x0b", "\x0c", "\x1c",
        "\x85", "\xa0", "\u0301", "\u0327\u0301\u0345", COMPOSED, "\u1fa7", "\u200d",
        "\ufeff", "\ufffd", "\0", "\x7f", "\xad", "\u3000", "가", "\u1100\u1161\u11a8", ".", "#",
        "▁", "İ", "ß", "of the", "<mask>", " <mask> ", "[MASK]", "aé é", "ae\u0301 é", "[UNK]",
        "of", "the ", "\U0001f468\u200d\U0001f469", "\U0010ffff", "ｱ\uff9e", "\u1c90", "\u0378",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=40).map("".join)


@pytest.mark.parametrize("name", WITH_RULE)
@settings(max_examples=150)
@given(text=TEXTS, times=st.sampled_from([1, 7]), enough=st.integers(0, 60))
@example(COMPOSED, 7, 60)
@example("\x0ba", 7, 60)
def test_no_text_has_fewer_tokens_than_it_is_said_to_have(name, text, times, enough):
    backend, rule = backend_and_rule(name)
    tokens = len(backend.encode(text * times, add_special_tokens=False))
    assert rule.of(text * times, 10**9) <= tokens
    assert rule.of(text * times, enough) <= tokens


@pytest.mark.parametrize("name", WITH_RULE)
def test_a_common_text_of_megabytes_is_known_to_be_long(name):
    _, rule = backend_and_rule(name)
    text = " ".join(SENTENCES)
    text *= 2_000_000 // len(text)
    assert rule.of(text, 8192) > 8192


@pytest.mark.parametrize("name", WITHOUT_RULE)
def test_where_many_characters_may_be_no_token_nothing_is_said(name):
    _, rule = backend_and_rule(name)
    assert rule.of("a the aa é " * 1000, 10) == 0

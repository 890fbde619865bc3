"""A bad word is forbidden in the spellings that it has inside a text, whatever the tokenizer does
at a text's beginning."""

from __future__ import annotations

from typing import Any

import pytest
from fusewire.errors import InvalidInput
from fusewire.generation.bad_words import BadWords
from fusewire.text.tokenizer import Tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from tests.text.translation_folders import FOLDERS

ALWAYS, FIRST, NEVER = (
    {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme=scheme)}
    for scheme in ("always", "first", "never")
)
# As in Llama 2's files.
PREPEND = {
    "normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
}


def bad_words(*more: str, parts: dict[str, Any], space: str = "▁") -> BadWords:
    pieces = ["<unk>", "h", "i", space, "hi", f"{space}h", f"{space}hi", *more]
    merges = [(space, "h"), (f"{space}h", "i"), ("h", "i")]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    for name, part in parts.items():
        setattr(backend, name, part)
    return BadWords(Tokenizer(backend, {"unk_token": "<unk>"}))


@pytest.mark.parametrize("parts", [ALWAYS, FIRST, NEVER, PREPEND], ids=str)
def test_a_word_is_spelled_as_it_goes_on_and_behind_a_space(parts):
    assert bad_words(parts=parts).token_ids(["hi"]) == [[4], [6]]


@pytest.mark.parametrize("prefix", [True, False])
def test_byte_level_vocabularies_too(prefix):
    parts = {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=prefix)}
    assert bad_words(parts=parts, space="Ġ").token_ids(["hi", "i"]) == [[4], [6], [2], [3, 2]]


@pytest.mark.parametrize("parts", [ALWAYS, NEVER, PREPEND], ids=str)
@pytest.mark.parametrize("word", ["é", "hé", "h é", "\ud800"], ids=ascii)
def test_a_word_that_the_vocabulary_cannot_spell_is_refused(parts, word):
    with pytest.raises(InvalidInput, match=r"bad_words: got '.*', wanted words that the model's"):
        bad_words(parts=parts).token_ids(["hi", word])


def test_an_unknown_token_is_no_spelling():
    backend = Backend(models.BPE(vocab={"<unk>": 0, "h": 1}, merges=[], unk_token="<unk>"))
    backend.add_special_tokens(["<unk>"])
    words = BadWords(Tokenizer(backend, {}))
    with pytest.raises(InvalidInput, match="bad_words"):
        words.token_ids(["x"])
    assert words.token_ids(["<unk>"])[0] == [0]


@pytest.mark.parametrize("kind", FOLDERS)
def test_sentencepiece_files_too(tmp_path, kind):
    tokenizer = Tokenizer.load_target(FOLDERS[kind](tmp_path))
    assert tokenizer is not None
    words = BadWords(tokenizer)
    word = "ri" if kind == "marian" else "sa"  # a seventh of its pieces have no ids
    spelled = ["".join(map(tokenizer.piece, ids)) for ids in words.token_ids([word])]
    assert spelled == [word, f"\u2581{word}"]
    with pytest.raises(InvalidInput, match="bad_words"):
        words.token_ids(["\U0001f600"])


def test_byte_fallback_spells_any_word():
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    spelled = BadWords(Tokenizer(backend, {})).token_ids(["é"])
    assert spelled == [[0xC3, 0xA9], [256, 0xC3, 0xA9]]

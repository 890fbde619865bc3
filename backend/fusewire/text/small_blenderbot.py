"""The tokens of Blenderbot's small model (Roller et al., 2020), read from vocab.json and
merges.txt, as in transformers' Python class: text is lower-cased, split into words at spaces and
punctuation, and words are split by byte-pair encoding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from fusewire.errors import CheckpointError
from fusewire.text.languages import Languages
from fusewire.text.numbering import Numbering
from fusewire.text.sentencepiece_backend import Text
from fusewire.text.sentencepiece_layouts import listed
from fusewire.text.tokenizer_files import CONFIG, MERGES, VOCABULARY, named_token
from fusewire.text.word_joining import GOES_ON, WordJoining
from fusewire.weights import file_in, read_json

_END_OF_WORD = "</w>"  # in merges.txt
_UNKNOWN = "\0"  # the library's unknown token; it occurs in no text
_ROLES = {
    "bos_token": "__start__",
    "eos_token": "__end__",
    "unk_token": "__unk__",
    "pad_token": "__null__",
}
# White space as in the package `regex`, which transformers uses: without U+001C to U+001F.
_WORD = re.compile(r"[\S\x1c-\x1f]+\n?")
_SPACES = re.compile(r"[^\S\x1c-\x1f]{2,}")
_PUNCTUATION = re.compile("([.,!?()])")
_MOST_MERGES_BYTES = 8 << 20


def small_blenderbot(
    folder: Path, config: dict[str, Any]
) -> tuple[tokenizers.Tokenizer, Numbering]:
    """Returns the library's tokenizer and the model's numbering. `config`: that of
    `tokenizer_config`. Raises CheckpointError."""
    vocabulary = _vocabulary(folder)
    merges = _merges(folder)
    roles = {role: named_token(config, role, usual) for role, usual in _ROLES.items()}
    for role, name in roles.items():
        if name not in vocabulary:
            raise _fault(CONFIG, role, name, f"a token of {VOCABULARY}")
    unknown = vocabulary[roles["unk_token"]]
    # The pieces of words: those of the vocabulary, and the intermediate results of merges.
    pieces = {_UNKNOWN: unknown}
    for name, index in vocabulary.items():
        inside = name.endswith(GOES_ON)
        pieces[name.removesuffix(GOES_ON) if inside else name + _END_OF_WORD] = index
    for first, second in merges:
        for piece in (first, second, first + second):
            pieces.setdefault(piece, unknown)
    places = {piece: place for place, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(
        models.BPE(places, merges, unk_token=_UNKNOWN, end_of_word_suffix=_END_OF_WORD)
    )
    normalizer = Words()
    backend.normalizer = normalizers.Normalizer.custom(normalizer)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    special = {name: vocabulary[name] for name in roles.values()}
    added = {token.content: (index, token) for index, token in listed(config).items()}
    found = special | {name: index for name, (index, _) in added.items()}
    tokens = [added[name][1] if name in added else AddedToken(name) for name in found]
    backend.add_special_tokens(tokens)
    ids = [*pieces.values(), *[unknown] * (backend.get_vocab_size() - len(pieces))]
    for place, token in backend.get_added_tokens_decoder().items():
        ids[place] = found[token.content]
    return backend, Numbering(
        ids,
        {index: name for name, index in (vocabulary | found).items()},
        normalizer,
        special,
        frozenset(special.values()),
        Languages(),
        joining=WordJoining(),
    )


class Words:
    """Splits a text into words, separated by one space. The library calls it with the texts between
    special tokens."""

    def lowering(self) -> Words:
        return self

    def inside(self) -> Words:
        return self

    def normalize(self, text: Text) -> None:
        words = " ".join(self._words(text.normalized))
        text.clear()
        if words:
            text.append(words)

    @staticmethod
    def _words(text: str) -> Iterator[str]:
        for word in _WORD.findall(text):
            word = _PUNCTUATION.sub(r" \1", word)
            word = _SPACES.sub(" ", word.replace("'", " ' "))
            yield from (
                part.lower() for part in word.replace("\n", " __newln__").split(" ") if part
            )


def _vocabulary(folder: Path) -> dict[str, int]:
    values = read_json(folder, VOCABULARY)
    if not values or not all(type(id_) is int and 0 <= id_ < 1 << 24 for id_ in values.values()):
        raise CheckpointError(f"{VOCABULARY}: wanted ids by token; download the file again")
    return dict(values)


def _merges(folder: Path) -> list[tuple[str, str]]:
    path = file_in(folder, MERGES)
    if path is None:
        raise CheckpointError(f"{MERGES}: missing, wanted the merges of words; download it too")
    if path.stat().st_size > _MOST_MERGES_BYTES:
        raise _fault(MERGES, "size", path.stat().st_size, f"at most {_MOST_MERGES_BYTES} bytes")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[1:-1]  # after the version line
    except UnicodeDecodeError:
        raise _fault(MERGES, "text", "other bytes", "UTF-8") from None
    pairs = [line.split() for line in lines]
    return [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]


def _fault(file: str, key: str, got: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{file}: {key}: got {repr(got)[:80]}, wanted {wanted}; correct the file"
    )

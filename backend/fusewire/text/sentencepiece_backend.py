"""Builds a tokenizer of the Rust library that splits texts into the same pieces as a SentencePiece
model.

Token ids are those of the file. Pieces that never occur in a split text (control, unused, the
unknown one) get a space as first character, which no normalised text has. So their string in a text
is treated as text.
"""

from __future__ import annotations

import re
from copy import copy
from typing import Protocol

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from fusewire.errors import CheckpointError
from fusewire.text.charsmap import Charsmap
from fusewire.text.sentencepiece_model import (
    BYTE,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    SentencePieceModel,
)

SPACE = "\u2581"  # represents a space in pieces


def sentencepiece_backend(
    model: SentencePieceModel, normalizer: SentencePieceNormalizer, name: str
) -> tokenizers.Tokenizer:
    """`name`: the file that messages name. Raises CheckpointError for a model that the library
    cannot split in the same way."""
    backend = tokenizers.Tokenizer(
        _unigram(model) if model.kind == "unigram" else _bpe(model, name)
    )
    backend.normalizer = normalizers.Normalizer.custom(normalizer)
    if _words_stand_alone(model):  # and can be cached by the library
        backend.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    steps: list[decoders.Decoder] = []
    if model.byte_fallback:
        steps = [decoders.ByteFallback(), decoders.Fuse()]
    steps += [decoders.Replace(SPACE, " "), decoders.Fuse()]
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend


class Text(Protocol):
    """The library's NormalizedString."""

    normalized: str

    def clear(self) -> None: ...
    def append(self, text: str) -> None: ...


class SentencePieceNormalizer:
    """A normaliser that the library calls with the texts between special tokens."""

    def __init__(self, model: SentencePieceModel, name: str) -> None:
        self._lowers = False
        self._rules = Charsmap(model.charsmap, name)
        self._prefix = SPACE if model.add_dummy_prefix else ""
        self._single_spaces = model.remove_extra_whitespaces
        own = [text for text, _, kind in model.pieces if kind == USER_DEFINED]
        longest_first = sorted(own, key=len, reverse=True)
        self._kept = re.compile("|".join(map(re.escape, longest_first))) if own else None

    def lowering(self) -> SentencePieceNormalizer:
        """Returns a copy that lower-cases first."""
        other = copy(self)
        other._lowers = True
        return other

    def inside(self) -> SentencePieceNormalizer:
        """Returns a copy for a part of a text: it keeps all spaces and adds none at the front."""
        other = copy(self)
        other._prefix, other._single_spaces = "", False
        return other

    def normalize(self, text: Text) -> None:
        normalized = self.normalized(text.normalized)
        text.clear()
        if normalized:
            text.append(normalized)

    def normalized(self, text: str) -> str:
        if not text:
            return ""
        text = self._replaced(text.lower() if self._lowers else text)
        if self._single_spaces:
            text = re.sub("  +", " ", text.strip(" "))
        text = self._prefix + text.replace(" ", SPACE)
        # Here the character U+2581 in the text itself counts as a space too.
        return text.rstrip(SPACE) if self._single_spaces else text

    def _replaced(self, text: str) -> str:
        """Returns the text with the rules applied, except to user-defined pieces."""
        if self._kept is None:
            return self._rules.apply(text)
        parts, at = [], 0
        for kept in self._kept.finditer(text):
            parts += [self._rules.apply(text[at : kept.start()]), kept[0]]
            at = kept.end()
        return "".join([*parts, self._rules.apply(text[at:])])


def _unigram(model: SentencePieceModel) -> models.Unigram:
    normal = [score for _, score, kind in model.pieces if kind == NORMAL]
    most = max(normal)

    def weighed(text: str, score: float, kind: int) -> float:
        if kind == USER_DEFINED:  # always chosen where it occurs
            return len(text.encode()) * most - 0.1
        # The library uses the lowest score, which must be that of a normal piece.
        return score if kind == NORMAL else most

    return models.Unigram(
        [
            (_spelled(text, kind, model), weighed(text, score, kind))
            for text, score, kind in model.pieces
        ],
        model.unk_id,
        model.byte_fallback,
    )


def _bpe(model: SentencePieceModel, name: str) -> models.BPE:
    """Returns a BPE model whose merges are in the order of the scores of their results."""
    other = sum(kind in (USER_DEFINED, UNUSED) for _, _, kind in model.pieces)
    if other:
        raise CheckpointError(
            f"{name}: got {other} user-defined or unused pieces in a BPE model, wanted none; this "
            "tokenizer is not supported (send input_ids)"
        )
    vocabulary = {_spelled(text, kind, model): i for i, (text, _, kind) in enumerate(model.pieces)}
    normal = {text: score for text, score, kind in model.pieces if kind == NORMAL}
    merges = [
        (text[:at], text[at:])
        for text in sorted(normal, key=lambda text: -normal[text])
        for at in range(1, len(text))
        if text[:at] in normal and text[at:] in normal
    ]
    return models.BPE(
        vocabulary,
        merges,
        unk_token=_spelled(*model.pieces[model.unk_id][::2], model),
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _spelled(text: str, kind: int, model: SentencePieceModel) -> str:
    in_texts = kind in (NORMAL, USER_DEFINED) or (kind == BYTE and model.byte_fallback)
    return text if in_texts else f" {text}"


def _words_stand_alone(model: SentencePieceModel) -> bool:
    """Whether no piece extends across a space, so that each word can be split by itself."""
    texts = {text for text, _, kind in model.pieces if kind in (NORMAL, USER_DEFINED)}
    return SPACE in texts and not any(SPACE in text[1:] for text in texts)

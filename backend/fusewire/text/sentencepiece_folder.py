"""The tokenizer of a folder that has SentencePiece files and no tokenizer.json: T5's spiece.model,
Marian's source.spm and M2M-100's sentencepiece.bpe.model, the last two with the model's ids in
vocab.json. What stands around a text, and further tokens, are those of transformers' classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from fusewire.errors import CheckpointError
from fusewire.text.numbering import Numbering
from fusewire.text.sentencepiece_backend import (
    SentencePieceNormalizer,
    sentencepiece_backend,
)
from fusewire.text.sentencepiece_model import SentencePieceModel, read_sentencepiece
from fusewire.text.tokenizer_files import CONFIG
from fusewire.weights import file_in, read_json

_VOCABULARY = "vocab.json"
_MOST_EXTRA_IDS = 10_000  # as <extra_id_0>


@dataclass
class _Tokens:
    """The model's vocabulary: `pieces` has the id of each piece of the file."""

    pieces: list[int]
    names: dict[int, str]
    special: dict[str, int]
    unknown: int
    single: str  # a template of tokens and $A, as `pair` of $A and $B
    pair: str
    languages: dict[str, int] = field(default_factory=dict)


# (the file's model, tokenizer_config.json, vocab.json) -> tokens
_Layout = Callable[[SentencePieceModel, dict[str, Any], dict[str, int]], _Tokens]


def load_sentencepiece(
    folder: Path, name: str, config: dict[str, Any]
) -> tuple[tokenizers.Tokenizer, Numbering]:
    """`name`: the file, as `tokenizer_file` finds it. `config`: `tokenizer_config`.
    CheckpointError."""
    path = file_in(folder, name)
    assert path is not None
    with_vocabulary, layout = _LAYOUTS[name]
    vocabulary = _vocabulary(folder) if with_vocabulary else {}
    model = read_sentencepiece(path)
    tokens = layout(model, config, vocabulary)
    normalizer = SentencePieceNormalizer(model, name)
    backend = sentencepiece_backend(model, normalizer, name)
    return backend, _numbered(backend, normalizer, tokens, _listed(config))


def _vocabulary(folder: Path) -> dict[str, int]:
    values = read_json(folder, _VOCABULARY)
    if values is None:
        raise CheckpointError(f"{_VOCABULARY}: missing, wanted the ids of tokens; download it too")
    ids = values.values()
    if not all(type(each) is int and 0 <= each < 1 << 24 for each in ids) or not values:
        raise CheckpointError(f"{_VOCABULARY}: wanted ids by token; download the file again")
    return values


def _t5(model: SentencePieceModel, config: dict[str, Any], _: dict[str, int]) -> _Tokens:
    names = [text for text, _, _ in model.pieces]
    extra = config.get("extra_ids", 100)
    if type(extra) is not int or not 0 <= extra <= _MOST_EXTRA_IDS:
        raise _fault("extra_ids", extra, f"a whole number in 0..{_MOST_EXTRA_IDS}")
    names += [f"<extra_id_{number}>" for number in range(extra - 1, -1, -1)]
    ids = {name: index for index, name in enumerate(names)}
    roles = _roles(config, ids, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    special = {name: ids[name] for name in (*roles.values(), *names[len(model.pieces) :])}
    end = roles["eos_token"]
    return _Tokens(
        list(range(len(model.pieces))),
        dict(enumerate(names)),
        special,
        ids[roles["unk_token"]],
        f"$A {end}",
        f"$A {end} $B {end}",
    )


def _marian(
    model: SentencePieceModel, config: dict[str, Any], vocabulary: dict[str, int]
) -> _Tokens:
    roles = _roles(config, vocabulary, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    end = roles["eos_token"]
    return _Tokens(
        _ids(model, vocabulary, roles["unk_token"]),
        {index: name for name, index in vocabulary.items()},
        {name: vocabulary[name] for name in roles.values()},
        vocabulary[roles["unk_token"]],
        f"$A {end}",
        f"$A $B {end}",
        {
            name: index
            for name, index in vocabulary.items()
            if name.startswith(">>") and name.endswith("<<")
        },
    )


def _m2m_100(
    model: SentencePieceModel, config: dict[str, Any], vocabulary: dict[str, int]
) -> _Tokens:
    listed = config.get("additional_special_tokens") or config.get("extra_special_tokens")
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise _fault("additional_special_tokens", listed, "the tokens of languages, as __en__")
    ids = {**vocabulary}
    for name in listed:
        ids.setdefault(name, len(ids))
    roles = _roles(
        config, ids, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    source, end = f"__{config.get('src_lang') or 'en'}__", roles["eos_token"]
    if source not in ids:
        raise _fault("src_lang", config.get("src_lang"), "a language of the model")
    return _Tokens(
        _ids(model, ids, roles["unk_token"]),
        {index: name for name, index in ids.items()},
        {name: ids[name] for name in (*roles.values(), *listed)},
        ids[roles["unk_token"]],
        f"{source} $A {end}",
        f"{source} $A $B {end}",
    )


# By file: whether vocab.json has the ids, and the layout.
_LAYOUTS: dict[str, tuple[bool, _Layout]] = {
    "spiece.model": (False, _t5),
    "source.spm": (True, _marian),
    "sentencepiece.bpe.model": (True, _m2m_100),
}


def _ids(model: SentencePieceModel, vocabulary: Mapping[str, int], unknown: str) -> list[int]:
    return [vocabulary.get(text, vocabulary[unknown]) for text, _, _ in model.pieces]


def _roles(config: dict[str, Any], ids: Mapping[str, int], **usual: str) -> dict[str, str]:
    """The tokens that the files name, or the usual ones; all are in the vocabulary."""
    roles = {}
    for role, name in usual.items():
        named = config.get(role)
        named = named.get("content") if isinstance(named, dict) else named
        roles[role] = named if isinstance(named, str) else name
        if roles[role] not in ids:
            raise _fault(role, roles[role], "a token of the vocabulary")
    return roles


def _listed(config: dict[str, Any]) -> dict[str, AddedToken]:
    """How added tokens are found in texts, where tokenizer_config.json says so."""
    listed = config.get("added_tokens_decoder") or {}
    try:
        tokens = [
            AddedToken(
                each["content"],
                single_word=each.get("single_word", False),
                lstrip=each.get("lstrip", False),
                rstrip=each.get("rstrip", False),
                normalized=False,
                special=each.get("special", True),
            )
            for each in listed.values()
        ]
    except (AttributeError, KeyError, TypeError):
        raise _fault("added_tokens_decoder", listed, "tokens by id") from None
    return {token.content: token for token in tokens}


def _numbered(
    backend: tokenizers.Tokenizer,
    normalizer: SentencePieceNormalizer,
    tokens: _Tokens,
    listed: Mapping[str, AddedToken],
) -> Numbering:
    """Gives the backend its added tokens and what stands around a text."""
    found = tokens.special.copy()
    if tokens.languages:
        found |= {Numbering.MARK + name: index for name, index in tokens.languages.items()}
        found[Numbering.UNKNOWN] = tokens.unknown
    backend.add_tokens(
        [listed.get(name) or AddedToken(name, normalized=False, special=True) for name in found]
    )
    places = {token.content: index for index, token in backend.get_added_tokens_decoder().items()}
    ids = [*tokens.pieces, *[tokens.unknown] * (backend.get_vocab_size() - len(tokens.pieces))]
    for name, index in found.items():
        ids[places[name]] = index
    around = {*tokens.single.split(), *tokens.pair.split()} - {"$A", "$B"}
    backend.post_processor = TemplateProcessing(
        single=tokens.single,
        pair=tokens.pair,
        special_tokens=[(name, places[name]) for name in sorted(around)],
    )
    return Numbering(ids, tokens.names, normalizer, tokens.special, frozenset(tokens.languages))


def _fault(key: str, got: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{CONFIG}: {key}: got {repr(got)[:80]}, wanted {wanted}; correct the file"
    )

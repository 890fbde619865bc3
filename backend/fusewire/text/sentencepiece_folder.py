"""The tokenizer of a folder with SentencePiece files and without tokenizer.json: T5's spiece.model,
Marian's source.spm, and the sentencepiece.bpe.model of M2M-100, NLLB, mBART, PLBart and XLM-R."""

from __future__ import annotations

from collections.abc import Mapping
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
from fusewire.text.sentencepiece_layouts import (
    MARIAN_TARGET,
    Tokens,
    layout_of,
    listed,
    read_pieces,
)
from fusewire.text.tokenizer_files import CONFIG, TARGET, tokenizer_class

# The library takes some 2 KB per added token of usual length, and 100 bytes per character.
_MOST_ADDED = 1 << 15
_MOST_CHARACTERS = 1 << 20


def load_sentencepiece(
    folder: Path, name: str, config: dict[str, Any], *, target: bool
) -> tuple[tokenizers.Tokenizer, Numbering]:
    """Returns the library's tokenizer and the model's numbering. `name`: the result of
    `tokenizer_file`. `config`: that of `tokenizer_config`. `target`: for texts in the language of
    the answers. Raises CheckpointError."""
    kind = tokenizer_class(folder, config)
    if target and kind == "marian":
        name, kind = TARGET, MARIAN_TARGET
    model = read_pieces(folder, name)
    tokens = layout_of(kind)(model, config, folder)
    normalizer = SentencePieceNormalizer(model, name)
    backend = sentencepiece_backend(model, normalizer, name)
    if tokens.decoder is not None:
        backend.decoder = tokens.decoder
    return backend, _numbered(backend, normalizer, tokens, listed(config))


def _numbered(
    backend: tokenizers.Tokenizer,
    normalizer: SentencePieceNormalizer,
    tokens: Tokens,
    listed: Mapping[int, AddedToken],
) -> Numbering:
    """Adds the added tokens and the template of special tokens to the backend. Returns the
    numbering. `listed`: added tokens by id."""
    as_listed = {token.content: token for token in listed.values()}
    found = tokens.special | {token.content: index for index, token in listed.items()}
    if tokens.prefixes is not None:
        found |= {Numbering.MARK + name: index for name, index in tokens.prefixes.items()}
        found[Numbering.UNKNOWN] = tokens.unknown
    size = len("".join(found))
    if len(found) > _MOST_ADDED or size > _MOST_CHARACTERS:
        raise CheckpointError(
            f"{CONFIG}: got {len(found)} added tokens of {size} characters, with those of the "
            f"vocabulary, wanted at most {_MOST_ADDED} of {_MOST_CHARACTERS}; correct the file"
        )
    backend.add_tokens(
        [
            as_listed.get(name)
            or AddedToken(name, lstrip=name == tokens.takes_spaces, normalized=False, special=True)
            for name in found
        ]
    )
    places = {token.content: index for index, token in backend.get_added_tokens_decoder().items()}
    ids = [*tokens.pieces, *[tokens.unknown] * (backend.get_vocab_size() - len(tokens.pieces))]
    around = {*tokens.single.split(), *tokens.pair.split()} - {"$A", "$B"}
    try:
        for name, index in found.items():
            ids[places[name]] = index
        backend.post_processor = TemplateProcessing(
            single=tokens.single,
            pair=tokens.pair,
            special_tokens=[(name, places[name]) for name in sorted(around)],
        )
    except (KeyError, ValueError):
        raise CheckpointError(
            f"{CONFIG}: got special tokens without a character or with a space (around a text: "
            f"{tokens.single[:80]!r}), wanted those of the model; correct the file"
        ) from None
    skipped = tokens.skipped
    return Numbering(
        ids,
        tokens.names,
        normalizer,
        tokens.special,
        frozenset(tokens.special.values()) if skipped is None else skipped,
        tokens.languages,
        None if tokens.prefixes is None else frozenset(tokens.prefixes),
        tokens.joining,
        tokens.cleans_spaces,
    )

"""Selects the files of a folder from which its tokenizer is read. Imports no tokenizer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fusewire.weights import file_in, read_json
from fusewire.weights.formats import TOKENIZER

CONFIG = "tokenizer_config.json"

# Tokenizer class, in the notation of model types -> its SentencePiece file.
SENTENCEPIECE = {
    "t5": "spiece.model",
    "mt5": "spiece.model",
    "umt5": "spiece.model",
    "marian": "source.spm",
    "m2m100": "sentencepiece.bpe.model",
    "nllb": "sentencepiece.bpe.model",
    "mbart": "sentencepiece.bpe.model",
    "mbart50": "sentencepiece.bpe.model",
    "plbart": "sentencepiece.bpe.model",
    "xlmroberta": "sentencepiece.bpe.model",
}
TARGET = "target.spm"  # beside source.spm
VOCABULARY, MERGES = "vocab.json", "merges.txt"
# Other classes that are read without tokenizer.json -> the file to read. ByT5's tokens are in no
# file; its class is named in CONFIG.
_OTHERS = {"byt5": CONFIG, "blenderbotsmall": VOCABULARY}
SENTENCEPIECE_FILES = (*sorted({*SENTENCEPIECE.values()}), TARGET)
# For messages: the files that are accepted.
_OF_CLASSES = " or ".join(sorted({*SENTENCEPIECE.values()}))
WANTED = f"{TOKENIZER} or, of a class that is known, {_OF_CLASSES}"


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """Returns tokenizer_config.json, completed by special_tokens_map.json."""
    special = read_json(folder, "special_tokens_map.json") or {}
    return special | (read_json(folder, CONFIG) or {})


def tokenizer_file(folder: Path) -> str | None:
    """Returns tokenizer.json, otherwise the first file of a supported class, or None."""
    if file_in(folder, TOKENIZER) is not None:
        return TOKENIZER
    name = (SENTENCEPIECE | _OTHERS).get(tokenizer_class(folder, tokenizer_config(folder)))
    return name if name is not None and file_in(folder, name) is not None else None


def tokenizer_class(folder: Path, config: dict[str, Any]) -> str:
    """Returns a key of SENTENCEPIECE: the class in tokenizer_config.json, otherwise the model's
    type."""
    named = config.get("tokenizer_class")
    if isinstance(named, str):
        return named.removesuffix("Fast").removesuffix("Tokenizer").lower()
    model_type = (read_json(folder, "config.json") or {}).get("model_type")
    return re.sub("[_-]", "", str(model_type))


def named_token(config: dict[str, Any], role: str, usual: str) -> str:
    """Returns the token that `tokenizer_config` has for a role (eos_token), otherwise `usual`."""
    named = config.get(role)
    named = named.get("content") if isinstance(named, dict) else named
    return named if isinstance(named, str) else usual

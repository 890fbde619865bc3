"""Which of a folder's files its tokenizer is read from. Imports no tokenizer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fusewire.weights import file_in, read_json
from fusewire.weights.formats import TOKENIZER

CONFIG = "tokenizer_config.json"

# The tokenizer's class, named as its models are -> its SentencePiece file.
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
# Other classes that are read without tokenizer.json -> what is there to read: of ByT5, whose tokens
# are in no file, what names the class.
_OTHERS = {"byt5": CONFIG, "blenderbotsmall": VOCABULARY}
SENTENCEPIECE_FILES = (*sorted({*SENTENCEPIECE.values()}), TARGET)
# In messages: what would do.
_OF_CLASSES = " or ".join(sorted({*SENTENCEPIECE.values()}))
WANTED = f"{TOKENIZER} or, of a class that is known, {_OF_CLASSES}"


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, completed by special_tokens_map.json."""
    special = read_json(folder, "special_tokens_map.json") or {}
    return special | (read_json(folder, CONFIG) or {})


def tokenizer_file(folder: Path) -> str | None:
    """tokenizer.json, else the first file of a class that is known; None for neither."""
    if file_in(folder, TOKENIZER) is not None:
        return TOKENIZER
    name = (SENTENCEPIECE | _OTHERS).get(tokenizer_class(folder, tokenizer_config(folder)))
    return name if name is not None and file_in(folder, name) is not None else None


def tokenizer_class(folder: Path, config: dict[str, Any]) -> str:
    """As SENTENCEPIECE names it: the one that tokenizer_config.json names, else the model's."""
    named = config.get("tokenizer_class")
    if isinstance(named, str):
        return named.removesuffix("Fast").removesuffix("Tokenizer").lower()
    model_type = (read_json(folder, "config.json") or {}).get("model_type")
    return re.sub("[_-]", "", str(model_type))


def named_token(config: dict[str, Any], role: str, usual: str) -> str:
    """The token that `tokenizer_config` names for a role (eos_token), else the usual one."""
    named = config.get(role)
    named = named.get("content") if isinstance(named, dict) else named
    return named if isinstance(named, str) else usual

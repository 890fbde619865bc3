"""Special tokens by their role in tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# Folders often leave out the names that their tokenizer class has by default. These names count
# only if the tokenizer itself lists them as special tokens.
_USUAL_NAMES = {
    "mask_token": ("[MASK]", "<mask>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
}


def role_id(
    role: str,
    config: Mapping[str, Any],
    id_of: Callable[[str], int | None],
    is_special: Callable[[int], bool],
) -> int | None:
    """Returns the id of the token with the role (`mask_token`, ...), or None. `id_of`: returns the
    id of a string in the vocabulary."""
    named = config.get(role)
    if isinstance(named, dict):
        named = named.get("content")
    if isinstance(named, str):
        return id_of(named)
    for usual in _USUAL_NAMES[role]:
        index = id_of(usual)
        if index is not None and is_special(index):
            return index
    return None

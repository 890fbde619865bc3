"""ByT5's tokens (Xue et al., 2022), which no file lists: <pad>, </s> and <unk>, then the bytes of
UTF-8, then the sentinels."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from fusewire.errors import CheckpointError
from fusewire.text.byte_level import SPELLED
from fusewire.text.tokenizer_files import CONFIG, named_token

_FIRST = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}  # in order
_EXTRA_IDS = 125
_MOST_EXTRA_IDS = 10_000


def byte_backend(config: dict[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer. `config`: tokenizer_config.json; the caller adds its
    `added_tokens_decoder`. Raises CheckpointError."""
    first = [named_token(config, role, usual) for role, usual in _FIRST.items()]
    vocabulary = {piece: index for index, piece in enumerate([*first, *SPELLED])}
    if len(vocabulary) < len(first) + len(SPELLED) or "" in first:
        raise _fault("pad_token, eos_token, unk_token", first, "three tokens of their own")
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    # transformers strips white space around these tokens only.
    around = [AddedToken(name, lstrip=True, rstrip=True, normalized=False) for name in first]
    backend.add_special_tokens(around)
    backend.add_special_tokens([*_sentinels(config)])
    end = first[1]
    try:
        backend.post_processor = TemplateProcessing(
            single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, 1)]
        )
    except ValueError:
        raise _fault("eos_token", end, "the token that ends a text") from None
    return backend


def _sentinels(config: dict[str, Any]) -> list[str]:
    """Returns the sentinels that the file names under one of two keys, otherwise the default
    ones."""
    for key in ("additional_special_tokens", "extra_special_tokens"):
        names = config.get(key)
        if names:
            listed = names if isinstance(names, list) else [None]
            found = [each.get("content") if isinstance(each, dict) else each for each in listed]
            spelled = [name for name in found if isinstance(name, str) and name]
            if len(spelled) < len(found):
                raise _fault(key, names, "a list of tokens")
            return spelled
    count = config.get("extra_ids", _EXTRA_IDS)
    if type(count) is not int or not 0 <= count <= _MOST_EXTRA_IDS:
        raise _fault("extra_ids", count, f"a whole number in 0..{_MOST_EXTRA_IDS}")
    return [f"<extra_id_{number}>" for number in range(count)]


def _fault(key: str, got: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{CONFIG}: {key}: got {repr(got)[:80]}, wanted {wanted}; correct the file"
    )

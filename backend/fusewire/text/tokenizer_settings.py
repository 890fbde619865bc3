"""Settings in tokenizer_config.json that transformers applies to a tokenizer.json."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import AddedToken, normalizers

from fusewire.errors import CheckpointError
from fusewire.text.tokenizer_files import CONFIG
from fusewire.weights.formats import TOKENIZER as FILE

# Key of tokenizer_config.json -> attribute of the BERT normaliser. strip_accents may be null, which
# follows lower-casing.
_BERT_SWITCHES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def follow_bert_switches(backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Lets tokenizer_config.json override a BERT normaliser, as transformers' BERT classes do. The
    plain fast class uses tokenizer.json unchanged."""
    normalizer = backend.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer):
        return
    if config.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return
    for key, switch in _BERT_SWITCHES.items():
        if key not in config:
            continue
        value = config[key]
        if not isinstance(value, bool) and (value is not None or key != "strip_accents"):
            raise CheckpointError(
                f"{CONFIG}: {key}: got {value!r}, wanted true or false; correct the file"
            )
        setattr(normalizer, switch, value)
    backend.normalizer = normalizer


def add_listed_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Adds the tokens that tokenizer_config.json lists and tokenizer.json lacks, as transformers
    does. Tokens of a chat format are sometimes only in the former."""
    listed = config.get("added_tokens_decoder") or {}
    try:
        tokens = {int(index): dict(token) for index, token in listed.items()}
        for index, token in sorted(tokens.items()):
            if backend.token_to_id(token["content"]) is None:
                token.pop("__type", None)
                backend.add_tokens([AddedToken(**token)])
                if backend.token_to_id(token["content"]) != index:
                    raise ValueError(f"{token['content']!r} is not the next token")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{CONFIG}: added_tokens_decoder: got {repr(listed)[:80]} ({error}), wanted the tokens "
            f"of {FILE} and those after them, by id; correct one of the two files"
        ) from None


def truncation_side(config: dict[str, Any], stored: dict[str, Any] | None = None) -> str:
    """Returns the end of a text at which tokens are removed: right or left. `stored`: truncation in
    tokenizer.json, whose direction holds where tokenizer_config.json names none."""
    side = config.get("truncation_side", (stored or {}).get("direction", "right"))
    if side not in ("right", "left"):
        raise CheckpointError(
            f"{CONFIG}: truncation_side: got {side!r}, wanted one of right, left; correct the file"
        )
    return str(side)


def max_length(config: dict[str, Any]) -> int | None:
    """Returns model_max_length, or None where the file has transformers' "no limit" (1e30) or
    nothing."""
    value = config.get("model_max_length")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
        raise CheckpointError(
            f"{CONFIG}: model_max_length: got {value!r}, wanted a number of at least 1; "
            "correct the file"
        )
    return int(value) if value < 1e9 else None

"""generation_config.json: what a folder specifies about generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError
from fusewire.models.target_tokens import TargetTokens
from fusewire.weights import read_json

FILE = "generation_config.json"


def eos_token_ids(folder: Path | str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the tokens that end a text; `default` if the file or its key is missing."""
    ids = _token_ids(read_json(folder, FILE) or {}, "eos_token_id")
    return default if ids is None else ids


def target_tokens(folder: Path | str, default: TargetTokens) -> TargetTokens:
    """Returns the special tokens as transformers' `generate` takes them: if the folder has the
    file, those of the file, with the first token of `default` if the file has none; else
    `default`."""
    values = read_json(folder, FILE)
    if values is None:
        return default
    given = TargetTokens(
        decoder_start=_token_id(values, "decoder_start_token_id"),
        forced_bos=_token_id(values, "forced_bos_token_id"),
        forced_eos=_token_ids(values, "forced_eos_token_id") or (),
        bos=_token_id(values, "bos_token_id"),
    )
    return replace(given, decoder_start=default.first) if given.first is None else given


def _token_id(values: Mapping[str, Any], key: str) -> int | None:
    ids = _token_ids(values, key)
    if ids is not None and len(ids) != 1:
        raise _fault(key, values[key], "a token id")
    return None if ids is None else ids[0]


def _token_ids(values: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    value = values.get(key)
    if value is None:
        return None
    ids = value if isinstance(value, list) else [value]
    if not all(type(each) is int and each >= 0 for each in ids):
        raise _fault(key, value, "a token id or a list of them")
    return tuple(ids)


def _fault(key: str, got: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{FILE}: {key}: got {str(got)[:80]}, wanted {wanted}; download the file again"
    )

"""generation_config.json: what a folder says of the texts its model writes."""

from __future__ import annotations

from pathlib import Path

from fusewire.errors import CheckpointError
from fusewire.weights import read_json

FILE = "generation_config.json"


def eos_token_ids(folder: Path | str, default: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that end a text; `default` where the file or its key is not there."""
    values = read_json(folder, FILE) or {}
    value = values.get("eos_token_id")
    if value is None:
        return default
    ids = value if isinstance(value, list) else [value]
    if not all(type(each) is int and each >= 0 for each in ids):
        raise CheckpointError(
            f"{FILE}: eos_token_id: got {str(value)[:80]}, wanted a token id or a list of them; "
            "download the file again"
        )
    return tuple(ids)

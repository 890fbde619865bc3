"""What a folder's generation_config.json says about generation. Where the folder has no such file
its config.json says it, as it did before there was one.

A key that changes which tokens transformers would generate, and that is not supported, is refused
unless it has the value that switches it off: an answer that differs from the model's own for no
visible reason is worse than none. Keys about caches, speculation, outputs and origin are ignored;
so is `max_length`, whose place the deployment's own limit takes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError, InvalidInput
from fusewire.generation.checks import read_parameters
from fusewire.generation.limits import GenerationLimits
from fusewire.generation.no_effect import HUGGING_FACE, has_no_effect, spelled
from fusewire.weights import read_json

FILE = "generation_config.json"
OLDER_FILE = "config.json"

# Hugging Face's key -> the field that takes it.
_TAKEN = {
    **{
        name: name
        for name in (
            "max_new_tokens",
            "min_new_tokens",
            "do_sample",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "typical_p",
            "repetition_penalty",
            "no_repeat_ngram_size",
        )
    },
    "stop_strings": "stop",
}

# A folder is made for no deployment in particular: what it says must go together, and gives way
# where a deployment has less room.
_ANY = GenerationLimits(*[sys.maxsize] * 4)


def generation_defaults(folder: Path) -> dict[str, Any]:
    """The `defaults` of `read_parameters`; CheckpointError."""
    config, file = generation_config(folder)
    for key, harmless in HUGGING_FACE.items():
        value = config.get(key)
        if value is not None and not has_no_effect(value, harmless):
            raise CheckpointError(
                f"{file}: {key}: got {repr(value)[:80]}, wanted {spelled(harmless)}, as it is not "
                "supported; remove it where its effect is not needed"
            )
    taken = {field: config[key] for key, field in _TAKEN.items() if config.get(key) is not None}
    try:
        read_parameters(taken, _ANY)
    except InvalidInput as error:
        raise CheckpointError(f"{file}: {error}") from None
    return taken


def generation_config(folder: Path) -> tuple[Mapping[str, Any], str]:
    """What the folder says, among other things, and the file in which it does."""
    written = read_json(folder, FILE)
    if written is not None:
        return written, FILE
    return read_json(folder, OLDER_FILE) or {}, OLDER_FILE

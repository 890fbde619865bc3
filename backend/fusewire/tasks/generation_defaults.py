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
from fusewire.tasks.generation_checks import GenerationLimits
from fusewire.tasks.generation_parameters import GenerationParameters
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

# Hugging Face's key -> the values, besides null, with which it changes nothing.
_SWITCHED_OFF: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "max_time": (),
    "min_length": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": ([], {}),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "top_h": (1,),
    "watermarking_config": (),
}

# A folder is made for no deployment in particular: what it says must go together, and gives way
# where a deployment has less room.
_ANY = GenerationLimits(*[sys.maxsize] * 4)


def generation_defaults(folder: Path) -> dict[str, Any]:
    """The `defaults` of GenerationParameters.parse; CheckpointError."""
    config, file = generation_config(folder)
    for key, off in _SWITCHED_OFF.items():
        value = config.get(key)
        if value is not None and value not in off:
            wanted = " or ".join([*(str(value) for value in off), "null"])
            raise CheckpointError(
                f"{file}: {key}: got {repr(value)[:80]}, wanted {wanted}, as it is not supported; "
                "remove it where its effect is not needed"
            )
    taken = {field: config[key] for key, field in _TAKEN.items() if config.get(key) is not None}
    try:
        GenerationParameters.of(taken, _ANY)
    except InvalidInput as error:
        raise CheckpointError(f"{file}: {error}") from None
    return taken


def generation_config(folder: Path) -> tuple[Mapping[str, Any], str]:
    """What the folder says, among other things, and the file in which it does."""
    written = read_json(folder, FILE)
    if written is not None:
        return written, FILE
    return read_json(folder, OLDER_FILE) or {}, OLDER_FILE

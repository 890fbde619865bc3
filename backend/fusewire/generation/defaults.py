"""What a folder's generation_config.json says about generation. Where the folder has no such file
its config.json says it, as it did before there was one.

A key that changes which tokens transformers would generate, and that is not supported, is refused
unless it has the value that switches it off: an answer that differs from the model's own for no
visible reason is worse than none. Keys about caches, speculation, outputs and origin are ignored;
so is `max_length`, whose place the deployment's own limit takes. Of an encoder-decoder model, whose
targets have lengths of their own, `min_length` and `max_length` are taken; the tokens that begin
and end its targets are the model's to read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError, InvalidInput
from fusewire.generation.checks import read_parameters
from fusewire.generation.limits import GenerationLimits, SourceLimits
from fusewire.generation.no_effect import HUGGING_FACE, has_no_effect, spelled
from fusewire.generation.speech import SpeechTokens, speech_defaults
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
            "encoder_no_repeat_ngram_size",
            "encoder_repetition_penalty",
            "bad_words_ids",
            "suppress_tokens",
            "begin_suppress_tokens",
            "renormalize_logits",
            "num_beams",
            "length_penalty",
            "early_stopping",
            "num_beam_groups",
            "diversity_penalty",
        )
    },
    "stop_strings": "stop",
}

# Hugging Face's lengths of a target -> the field that takes it, which counts what is generated:
# all but the token in front.
_TARGET_LENGTHS = {"min_length": "min_new_tokens", "max_length": "max_new_tokens"}
# Hugging Face's keys of encoder-decoder models alone, and the values that switch them off.
_OF_SOURCES: Mapping[str, tuple[Any, ...]] = {
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
}

# Why other values are refused, and what to do.
_NOT_SUPPORTED = "it is not supported", "remove it where its effect is not needed"
_OF_REQUESTS = (  # clients read as many answers as they asked for
    "each request says how many texts it wants",
    "remove it, and send it (or `n`) with requests",
)

# A folder is made for no deployment in particular: what it says must go together, and gives way
# where a deployment has less room.
_ANY = GenerationLimits(sys.maxsize, sys.maxsize, sys.maxsize, sys.maxsize)
_ANY_WITH_SOURCE = replace(_ANY, source=SourceLimits(sys.maxsize, sys.maxsize, ""))


def generation_defaults(
    folder: Path, *, encoder_decoder: bool = False, speech: SpeechTokens | None = None
) -> dict[str, Any]:
    """The `defaults` of `read_parameters`; CheckpointError. `speech`: of a model of speech, whose
    lengths count what is generated."""
    config, file = generation_config(folder)
    for key, harmless in {**HUGGING_FACE, **_OF_SOURCES}.items():
        if encoder_decoder and (key in _TARGET_LENGTHS or key in _OF_SOURCES):
            continue
        value = config.get(key)
        if value is not None and not has_no_effect(value, harmless):
            why, remedy = _OF_REQUESTS if key == "num_return_sequences" else _NOT_SUPPORTED
            raise CheckpointError(
                f"{file}: {key}: got {repr(value)[:80]}, wanted {spelled(harmless)}, as {why}; "
                f"{remedy}"
            )
    taken = {field: config[key] for key, field in _TAKEN.items() if config.get(key) is not None}
    if encoder_decoder:
        taken = {**_target_lengths(config, file, 0 if speech else 1), **taken}
        _check_target_lengths(config, file, taken)
    limits = _ANY_WITH_SOURCE if encoder_decoder else _ANY
    if speech is not None:
        taken |= speech_defaults(config, speech)
        limits = replace(limits, speech=speech)
    try:
        # A folder samples where it says so, not where it names a temperature.
        read_parameters({"do_sample": False, **taken}, limits)
    except InvalidInput as error:
        raise CheckpointError(f"{file}: {error}") from None
    return taken


def generation_config(folder: Path) -> tuple[Mapping[str, Any], str]:
    """What the folder says, among other things, and the file in which it does."""
    written = read_json(folder, FILE)
    if written is not None:
        return written, FILE
    return read_json(folder, OLDER_FILE) or {}, OLDER_FILE


def _check_target_lengths(config: Mapping[str, Any], file: str, taken: Mapping[str, Any]) -> None:
    """CheckpointError by the keys that the file has, of lengths that contradict each other."""
    least, most = taken.get("min_new_tokens"), taken.get("max_new_tokens")
    if type(least) is int and type(most) is int and least > most:
        named = {
            field: field if config.get(field) is not None else key
            for key, field in _TARGET_LENGTHS.items()
        }
        key, limit = named["min_new_tokens"], named["max_new_tokens"]
        raise CheckpointError(
            f"{file}: {key}: got {config[key]}, wanted no more tokens than {limit}, "
            f"{config[limit]}, allows; correct one of them"
        )


def _target_lengths(config: Mapping[str, Any], file: str, begun: int) -> dict[str, int]:
    """`begun`: tokens of the lengths that are not generated."""
    lengths = {}
    for key, field in _TARGET_LENGTHS.items():
        length = config.get(key)
        if length is None:
            continue
        if type(length) is not int or length < 0:
            got = repr(length)[:80]
            raise CheckpointError(
                f"{file}: {key}: got {got}, wanted a number of tokens; download the file again"
            )
        lengths[field] = max(length - begun, 0 if key == "min_length" else 1)
    return lengths

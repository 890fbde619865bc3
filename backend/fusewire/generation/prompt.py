"""A prompt, text or ids, as the ids that a model reads: the one place that checks a request's. Of
an encoder-decoder model it is what the encoder reads."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput, counted, sent, type_name
from fusewire.generation.limits import GenerationLimits
from fusewire.generation.parameters import GenerationParameters
from fusewire.text.least_tokens import WORTH_WHILE
from fusewire.text.tokenizer import Tokenizer
from fusewire.text.tokenizer_library import TokenizerFault
from fusewire.text.unknown_tokens import unknown_token


@dataclass(frozen=True, eq=False)
class AudioFeatures:
    """What the encoder of a model of speech reads in place of tokens: its features, float32
    [frames, bins]. `heard`: frames of them that are audio, not silence behind it; None: all."""

    features: NDArray[np.float32]
    heard: int | None = None


@dataclass(frozen=True)
class Prompt:
    """Ids that a model knows, with room behind them for what is generated. Of audio they are 0, 1,
    2, ... as far as the encoder's rows go, beside its features."""

    token_ids: Sequence[int]
    max_new_tokens: int  # of each sequence
    features: NDArray[np.float32] | None = field(default=None, compare=False)


def read_prompt(
    prompt: str | Sequence[int],
    parameters: GenerationParameters,
    tokenizer: Tokenizer,
    limits: GenerationLimits,
    field: str = "",
) -> Prompt:
    """Tokenises a text. InvalidInput for no tokens, too many, or one that the model does not know;
    a text that is far too long is refused before it is tokenised. `field`: what errors name
    (default: the input that has it)."""
    most = limits.longest_prompt(parameters.max_new_tokens)
    field = field or ("text_input" if isinstance(prompt, str) else "input_ids")
    if isinstance(prompt, str):
        token_ids = _tokenised(prompt, tokenizer, parameters, limits, field)
    else:
        token_ids = _whole_numbers(prompt, field)
    if not token_ids:
        raise InvalidInput(field, "no tokens", "at least one", "send a prompt")
    source_lang, target_lang = parameters.source_lang, parameters.target_lang
    if source_lang is not None or target_lang is not None:
        token_ids = tokenizer.languages.source_ids(token_ids, source_lang, target_lang)
    if len(token_ids) > most:
        raise _too_long(field, f"{len(token_ids)} tokens", most, limits)
    # A tokenizer may know more tokens than its model.
    if not 0 <= min(token_ids) <= max(token_ids) < limits.prompt_vocab_size:
        wrong = min(token_ids) if min(token_ids) < 0 else max(token_ids)
        wanted = f"ids 0..{limits.prompt_vocab_size - 1}, the model's vocabulary"
        got, remedy = f"id {wrong}", "use this model's tokenizer and tokens"
        if isinstance(prompt, str):
            got, remedy = unknown_token(tokenizer, wrong)
        raise InvalidInput(field, got, wanted, remedy)
    return Prompt(token_ids, max_new_tokens(parameters, len(token_ids), limits))


def read_audio(
    audio: AudioFeatures,
    parameters: GenerationParameters,
    limits: GenerationLimits,
    decoder_tokens: int,
) -> Prompt:
    """The prompt of features that the model takes; InvalidInput where there is no room after the
    `decoder_tokens` that a text begins with."""
    assert limits.source is not None
    length = limits.source.max_length
    most = max_new_tokens(parameters, length, limits, decoder_tokens)
    return Prompt(range(length), most, audio.features)


def read_prefix(text: str, tokenizer: Tokenizer, limits: GenerationLimits) -> list[int]:
    """The ids of `target_prefix`, by the tokenizer of what the model writes; InvalidInput."""
    try:
        (encoded,) = tokenizer.encode([text], offsets=False, special_tokens=False)
    except TokenizerFault as fault:
        what = f"a text that the tokenizer cannot read ({fault})"
        raise InvalidInput("target_prefix", what, "text", "send valid Unicode") from None
    ids = list(encoded.ids)
    if not ids or max(ids) >= limits.vocab_size:
        got = "a text without tokens" if not ids else f"a text with id {max(ids)}"
        wanted = f"one of ids 0..{limits.vocab_size - 1}, the model's vocabulary"
        raise InvalidInput("target_prefix", got, wanted, "change it, or leave it out")
    return ids


def max_new_tokens(
    parameters: GenerationParameters,
    prompt_tokens: int,
    limits: GenerationLimits,
    decoder_tokens: int = 1,
) -> int:
    """Most tokens to generate for each sequence after a prompt of that length; InvalidInput where
    what was requested does not fit. `decoder_tokens`: those that the decoder of an encoder-decoder
    model begins with."""
    begun = limits.begun(prompt_tokens, decoder_tokens)
    room = limits.max_length - begun
    if room < 1 and limits.source is not None:
        given = ("prompt_ids", "decoder_input_ids", "target_prefix")
        name = next((each for each in given if getattr(parameters, each)), "max_length")
        wanted = f"at most {limits.max_length - 1}, which leave room for what is generated"
        remedy = "raise it" if name == "max_length" else "cut it"
        got = f"{counted(begun, 'tokens')} that the decoder begins with"
        raise InvalidInput(name, got, wanted, remedy)
    most, least = parameters.max_new_tokens, parameters.min_new_tokens
    too_many = least > room or (most is not None and most > room)
    for name in ("max_new_tokens", "min_new_tokens") if too_many else ():
        tokens = getattr(parameters, name)
        if name in parameters.model_fields_set and tokens is not None and tokens > room:
            longest = f"at most {room}, the context length of {limits.max_length} less"
            less = "the token" if begun == 1 else f"the {begun} tokens"
            if limits.source is None:
                less, remedy = f"{less} of the prompt", "lower it or shorten the prompt"
            else:
                less, remedy = f"{less} that the decoder begins with", "lower it"
            raise InvalidInput(parameters.named(name), tokens, f"{longest} {less}", remedy)
    if most is None:
        most = max(1, limits.max_request_tokens // parameters.sequences)
    return min(room, most)


def _tokenised(
    text: str,
    tokenizer: Tokenizer,
    parameters: GenerationParameters,
    limits: GenerationLimits,
    field: str,
) -> list[int]:
    most, special = limits.longest_prompt(parameters.max_new_tokens), parameters.add_special_tokens
    least = tokenizer.least_tokens.of(text, most) if len(text) > WORTH_WHILE else 0
    if least > most:
        raise _too_long(field, f"{len(text)} characters, at least {least} tokens", most, limits)
    try:
        (encoded,) = tokenizer.encode([text], offsets=False, special_tokens=special)
    except TokenizerFault as fault:
        what = f"a text that the tokenizer cannot read ({fault})"
        raise InvalidInput(field, what, "text", "send valid Unicode") from None
    return list(encoded.ids)


def _whole_numbers(ids: Sequence[int], field: str) -> list[int]:
    wanted, remedy = "token ids, which are whole numbers", "send ids"
    try:
        entries = [] if isinstance(ids, bytes) else list(ids)
    except TypeError:
        raise InvalidInput(field, type_name(ids), wanted, remedy) from None
    with contextlib.suppress(TypeError):
        if bool not in set(map(type, entries)):
            return list(map(index, entries))
    at = next(at for at, each in enumerate(entries) if not _is_whole(each))
    raise InvalidInput(field, f"{sent(entries[at])} at {at}", wanted, remedy)


def _is_whole(given: Any) -> bool:
    try:
        index(given)
    except TypeError:
        return False
    return not isinstance(given, bool)


def _too_long(field: str, got: str, most: int, limits: GenerationLimits) -> InvalidInput:
    source = limits.source
    why = "which leave room for what is generated" if source is None else source.reason
    return InvalidInput(field, got, f"at most {most}, {why}", "shorten the prompt")

"""A prompt, text or ids, as the ids that a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from fusewire.errors import InvalidInput
from fusewire.tasks.least_tokens import WORTH_WHILE
from fusewire.tasks.tokenizer import Tokenizer, TokenizerFault


def prompt_ids(
    prompt: str | Sequence[int],
    tokenizer: Tokenizer,
    vocab_size: int,
    *,
    most: int,
    add_special_tokens: bool,
    field: str = "",
) -> list[int]:
    """Tokenised, if it is a text, and checked; InvalidInput, also of over `most` tokens: of a text
    where that is known before it is tokenised. `field`: what errors name (default: the input that
    has it)."""
    if isinstance(prompt, str):
        name = field or "text_input"
        least = tokenizer.least_tokens.of(prompt, most) if len(prompt) > WORTH_WHILE else 0
        if least > most:
            raise too_long(name, f"{len(prompt)} characters, at least {least} tokens", most)
        try:
            (encoded,) = tokenizer.encode(
                [prompt], offsets=False, special_tokens=add_special_tokens
            )
        except TokenizerFault as fault:
            what = f"a text that the tokenizer cannot read ({fault})"
            raise InvalidInput(name, what, "text", "send valid Unicode") from None
        ids = list(encoded.ids)
    else:
        name = field or "input_ids"
        try:
            ids = [] if isinstance(prompt, bytes) else [index(token) for token in prompt]
        except TypeError:
            raise InvalidInput(
                name, "what is not a token id", "whole numbers", "send ids"
            ) from None
    if not ids:
        raise InvalidInput(name, "no tokens", "at least one", "send a prompt")
    if len(ids) > most:
        raise too_long(name, f"{len(ids)} tokens", most)
    # A tokenizer may know more tokens than its model.
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        wanted = f"ids 0..{vocab_size - 1}, the model's vocabulary"
        raise InvalidInput(name, f"id {wrong}", wanted, "use this model's tokenizer and tokens")
    return ids


def too_long(field: str, got: str, most: int) -> InvalidInput:
    wanted = f"at most {most}, which leave room for what is generated"
    return InvalidInput(field, got, wanted, "shorten the prompt")

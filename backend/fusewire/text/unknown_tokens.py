"""Tokens of a folder's tokenizer that its model has no embeddings of.

Folders of real models have some that no text is meant to contain, and transformers loads them, so
it is no error until a text has one.
"""

from __future__ import annotations

import logging

from fusewire.errors import counted, shown
from fusewire.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_MOST_NAMED = 3


def warn_of_unknown_tokens(name: object, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Logs the tokens that a text of the model `name` can have and whose ids are `vocab_size` or
    more, with a remedy."""
    beyond = sorted((i, token) for token, i in tokenizer.ids().items() if i >= vocab_size)
    if not beyond:
        return
    named = ", ".join(f"{shown(token)} (id {i})" for i, token in beyond[:_MOST_NAMED])
    more = ", …" if len(beyond) > _MOST_NAMED else ""
    _log.warning(
        "%s: its tokenizer has %s beyond ids 0..%d, the model's vocabulary: %s%s; texts with them "
        "are refused. To use them, call resize_token_embeddings(len(tokenizer)) of transformers, "
        "train the new embeddings and save the model",
        name,
        counted(len(beyond), "tokens"),
        vocab_size - 1,
        named,
        more,
    )


def unknown_token(tokenizer: Tokenizer, token: int) -> tuple[str, str]:
    """Returns what the error of a text with such a token says it got, and its remedy."""
    got = f"the token {shown(tokenizer.piece(token))} with id {token}"
    remedy = (
        "leave the token out (the model folder has a tokenizer with more tokens than the model)"
    )
    return got, remedy

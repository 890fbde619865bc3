"""What decoders have above their stacks: the language-modelling head."""

from __future__ import annotations

from fusewire.models.blueprint import Blueprint, Dense, Embeddings, Head, Stack
from fusewire.models.config import Config


def language_model(
    config: Config,
    prefix: str,
    stack: Stack,
    *,
    eos: int | None,
    tied: bool,
    stored: str = "lm_head",
    projection: Dense | None = None,
    soft_cap: float = 0.0,
    unread: tuple[str, ...] = (),
) -> Blueprint:
    """A head without a bias, behind a projection if words are narrower, whose weight is that of the
    word embeddings where config.json ties them, under whichever of the names; `stored` is what
    older files call it. `eos` and `tied` hold where config.json does not say."""
    assert isinstance(stack.embeddings, Embeddings)
    word = stack.embeddings.word
    tied = config.flag("tie_word_embeddings", tied)
    name = word.name.removesuffix(".weight") if tied else "lm_head"
    other = "lm_head" if tied else stored
    last = Dense((name,), word.columns, word.rows, bias=False)
    return Blueprint(
        prefix=prefix,
        stack=stack,
        task_heads={
            "generate": Head(None, (projection, last) if projection else (last,), soft_cap)
        },
        unread=unread,
        aliases={} if name == other else {f"{name}.weight": f"{other}.weight"},
        eos_token_ids=config.token_ids("eos_token_id", eos),
    )

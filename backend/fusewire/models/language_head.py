"""The language-modelling head of decoders."""

from __future__ import annotations

from dataclasses import replace

from fusewire.models.blueprint import Blueprint, Embeddings, Head, Stack
from fusewire.models.config import Config
from fusewire.models.stored_weights import Dense
from fusewire.weights import Checkpoint


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
    """Builds a decoder with a head without a bias, behind a projection if token embeddings are
    narrower. The head's weight is the token embeddings if config.json ties them and the checkpoint
    has no other; `stored` is its name in older files. `eos` and `tied`: defaults for
    config.json."""
    assert isinstance(stack.embeddings, Embeddings)
    word = stack.embeddings.word
    tied = config.flag("tie_word_embeddings", tied)
    other = word.name if tied else f"{stored}.weight"
    last = Dense(("lm_head",), word.columns, word.rows, bias=False)
    return Blueprint(
        prefix=prefix,
        stack=stack,
        task_heads={
            "generate": Head(None, (projection, last) if projection else (last,), soft_cap)
        },
        unread=unread,
        aliases={} if other == "lm_head.weight" else {"lm_head.weight": other},
        eos_token_ids=config.token_ids("eos_token_id", eos),
    )


def with_stored_bias(blueprint: Blueprint, checkpoint: Checkpoint) -> Blueprint:
    """Removes the head's `bias_row` if the checkpoint does not have it, as transformers takes zeros
    then."""
    head = blueprint.task_heads["generate"]
    *chain, last = head.chain
    if not last.bias_row or last.bias_row in checkpoint:
        return blueprint
    last = replace(last, bias=False, bias_row="")
    return replace(blueprint, task_heads={"generate": replace(head, chain=(*chain, last))})

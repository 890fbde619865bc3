"""Blenderbot (Roller et al., 2020): learned positions, pre-norm with a final norm; and Blenderbot
small: post-norm, with a norm of the embeddings, which in the decoder applies to the token
embeddings alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fusewire.models.bart_family import bart_family, learned_positions
from fusewire.models.blueprint import Blueprint, Embeddings
from fusewire.models.config import Config
from fusewire.models.target_tokens import TargetTokens

_family = partial(bart_family, eos=2, target=TargetTokens(decoder_start=1, forced_eos=(2,), bos=1))


def blenderbot(config: Config) -> Blueprint:
    position = learned_positions(config, skipped=0)
    return _family(config, pre_norm=True, position=position, embedding_norm=False)


def blenderbot_small(config: Config) -> Blueprint:
    position = learned_positions(config, skipped=0)
    whole = _family(config, pre_norm=False, position=position, embedding_norm=True)
    decoder = whole.stack
    assert isinstance(decoder.embeddings, Embeddings)
    # transformers scales only the encoder's token embeddings.
    embeddings = replace(
        decoder.embeddings, norm=None, word_norm=decoder.embeddings.norm, scale=1.0
    )
    return replace(whole, stack=replace(decoder, embeddings=embeddings))

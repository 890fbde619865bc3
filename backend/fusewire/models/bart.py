"""BART (Lewis et al., 2019) and PLBart (Ahmad et al., 2021): post-norm, learned positions whose
first two rows are unused; and mBART (Liu et al., 2020): pre-norm with a final norm."""

from __future__ import annotations

from functools import partial

from fusewire.models.bart_family import bart_family, learned_positions
from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.target_tokens import TargetTokens

_family = partial(
    bart_family, embedding_norm=True, eos=2, unread=("classification_head.", "qa_outputs.")
)


def bart(config: Config) -> Blueprint:
    target = TargetTokens(decoder_start=2, forced_eos=(2,))
    position = learned_positions(config, skipped=2)
    return _family(config, pre_norm=False, position=position, target=target)


def mbart(config: Config) -> Blueprint:
    target = TargetTokens(forced_eos=(2,), bos=0)
    position = learned_positions(config, skipped=2)
    return _family(config, pre_norm=True, position=position, target=target)


def plbart(config: Config) -> Blueprint:
    target = TargetTokens(forced_eos=(2,), bos=0)
    position = learned_positions(config, skipped=2)
    return _family(config, pre_norm=False, position=position, target=target, scaled=True)

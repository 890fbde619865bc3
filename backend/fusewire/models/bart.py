"""BART (Lewis et al., 2019): learned positions whose first two rows are unused, a norm behind each
part; and mBART (Liu et al., 2020): a norm in front of each part, and at the end."""

from __future__ import annotations

from fusewire.models.bart_family import bart_family
from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.target_tokens import TargetTokens

_LEARNED = "embed_positions.weight"


def bart(config: Config) -> Blueprint:
    return bart_family(
        config,
        pre_norm=False,
        position=_LEARNED,
        embedding_norm=True,
        eos=2,
        target=TargetTokens(decoder_start=2, forced_eos=2),
        unread=("classification_head.", "qa_outputs."),
    )


def mbart(config: Config) -> Blueprint:
    return bart_family(
        config,
        pre_norm=True,
        position=_LEARNED,
        embedding_norm=True,
        eos=2,
        target=TargetTokens(forced_eos=2, bos=0),
        unread=("classification_head.", "qa_outputs."),
    )

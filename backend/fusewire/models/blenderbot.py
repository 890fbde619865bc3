"""Blenderbot (Roller et al., 2020): learned positions, a norm in front of each part, and at the
end."""

from __future__ import annotations

from fusewire.models.bart_family import bart_family, learned_positions
from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.target_tokens import TargetTokens


def blueprint(config: Config) -> Blueprint:
    return bart_family(
        config,
        pre_norm=True,
        position=learned_positions(config, skipped=0),
        embedding_norm=False,
        eos=2,
        target=TargetTokens(decoder_start=1, forced_eos=2, bos=1),
    )

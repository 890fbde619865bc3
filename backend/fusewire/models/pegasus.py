"""Pegasus (Zhang et al., 2019): sinusoidal positions, pre-norm with a final norm."""

from __future__ import annotations

from fusewire.models.bart_family import STORED_SINUSOIDS, bart_family, fixed_positions
from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.target_tokens import TargetTokens


def blueprint(config: Config) -> Blueprint:
    return bart_family(
        config,
        pre_norm=True,
        position=fixed_positions(config),
        embedding_norm=False,
        eos=1,
        target=TargetTokens(decoder_start=0, forced_eos=(1,)),
        unread=STORED_SINUSOIDS,
    )

"""Marian (Junczys-Dowmunt et al., 2018), as in the translators of OPUS-MT (Tiedemann & Thottingal,
2020): post-norm, sinusoidal positions, and possibly a vocabulary of its own for the target."""

from __future__ import annotations

from fusewire.models.bart_family import STORED_SINUSOIDS, bart_family, fixed_positions
from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.target_tokens import TargetTokens


def blueprint(config: Config) -> Blueprint:
    shared = config.flag("share_encoder_decoder_embeddings", True)
    vocab_size = config.size("vocab_size")
    target = config.size_or_null("decoder_vocab_size", None) or vocab_size
    if shared and target != vocab_size:
        raise config.fault(
            "decoder_vocab_size", target, f"{vocab_size}, as the embeddings are shared"
        )
    return bart_family(
        config,
        pre_norm=False,
        position=fixed_positions(config),
        embedding_norm=False,
        eos=0,
        target=TargetTokens(decoder_start=58100, forced_eos=(0,)),
        target_vocabulary=None if shared else target,
        unread=STORED_SINUSOIDS,
    )

"""M2M-100 (Fan et al., 2020) and NLLB-200 (NLLB Team, 2022): pre-norm with a final norm, and
tensor2tensor's sinusoidal positions, which begin behind that of padding.

In a source, a padding token has no position and is not counted; in a target it is counted like any
other token.
"""

from __future__ import annotations

from fusewire.models.bart_family import STORED_SINUSOIDS, bart_family
from fusewire.models.blueprint import Blueprint, Sinusoids
from fusewire.models.config import Config
from fusewire.models.target_tokens import TargetTokens


def blueprint(config: Config) -> Blueprint:
    positions, hidden = config.size("max_position_embeddings"), config.size("d_model", least=4)
    padding = config.token_id("pad_token_id", 1)
    if padding is None or padding > positions:
        raise config.fault("pad_token_id", padding, f"a token id up to {positions}")
    first = padding + 1
    return bart_family(
        config,
        pre_norm=True,
        position={
            "encoder": Sinusoids(first + positions, hidden, padding_index=padding),
            "decoder": Sinusoids(positions, hidden, skipped=first, padding_index=padding),
        },
        embedding_norm=False,
        eos=2,
        target=TargetTokens(decoder_start=2),
        scaled=True,
        padding_index=padding,
        logits_bias=False,
        unread=STORED_SINUSOIDS,
    )

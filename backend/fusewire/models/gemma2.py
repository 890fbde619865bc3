"""Gemma 2 (Gemma Team, 2024): soft caps on scores and logits, sliding windows in every other
layer."""

from __future__ import annotations

from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.gemma_family import gemma
from fusewire.models.llama_family import sizes
from fusewire.models.rope_config import read_rope
from fusewire.models.windows import layer_types, windows


def blueprint(config: Config) -> Blueprint:
    size = sizes(config, head_dim=256, kv_heads=4)
    types = layer_types(config, lambda index: index % 2 == 0)
    return gemma(
        config,
        size,
        [read_rope(config, size.head_dim)] * len(types),
        windows(config, types, 4096),
        norm_heads=False,
        soft_cap=config.number_or_null("attn_logit_softcapping", 50.0) or 0.0,
        final_soft_cap=config.number_or_null("final_logit_softcapping", 30.0) or 0.0,
    )

"""Gemma 3's text model (Gemma Team, 2025): norms of query and key heads, five layers with a sliding
window for each layer without one, and a RoPE base for each of the two kinds."""

from __future__ import annotations

from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.gemma_family import gemma
from fusewire.models.llama_family import sizes
from fusewire.models.rope_config import rope_of_layer_type
from fusewire.models.windows import layer_types, windows

_THETA = {  # layer type -> (key in older configurations, default)
    "full_attention": ("rope_theta", 1_000_000.0),
    "sliding_attention": ("rope_local_base_freq", 10_000.0),
}


def blueprint(config: Config) -> Blueprint:
    if config.given("attn_logit_softcapping"):  # transformers reads it but does not apply it
        raise config.fault(
            "attn_logit_softcapping", config.values["attn_logit_softcapping"], "null"
        )
    size = sizes(config, head_dim=256, kv_heads=4)
    pattern = config.size("sliding_window_pattern", 6)
    types = layer_types(config, lambda index: (index + 1) % pattern != 0)
    ropes = {
        kind: rope_of_layer_type(config, size.head_dim, kind, config.number(*_THETA[kind]))
        for kind in _THETA
    }
    return gemma(
        config,
        size,
        [ropes[kind] for kind in types],
        windows(config, types, 4096),
        norm_heads=True,
        soft_cap=0.0,
        final_soft_cap=config.number_or_null("final_logit_softcapping", None) or 0.0,
    )

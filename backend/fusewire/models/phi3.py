"""Phi-3 and Phi-4-mini (Abdin et al., 2024): Llama with stacked weights, and longrope."""

from __future__ import annotations

from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.llama_family import family, family_layer, sizes
from fusewire.models.rope_config import read_rope

_TYPES = {"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}


def blueprint(config: Config) -> Blueprint:
    size = sizes(config)
    eps = config.number("rms_norm_eps", 1e-5)
    trained = {"original_max_position_embeddings": 4096}
    rope = read_rope(
        Config(trained | config.values),
        size.head_dim,
        partial=True,
        types=_TYPES,
    )
    window = config.size_or_null("sliding_window", None) or 0
    layers = [
        family_layer(
            index,
            size,
            eps,
            config.activation("hidden_act", "silu"),
            qkv_names=("qkv_proj",),
            gate_names=("gate_up_proj",),
            rope=rope,
            window=window,
        )
        for index in range(config.size("num_hidden_layers", most=4096))
    ]
    return family(config, size, layers, eps, eos=32000)

"""Llama 2 and 3 (Touvron et al., 2023; Grattafiori et al., 2024)."""

from __future__ import annotations

from fusewire.models.config import Config
from fusewire.models.decoder_blueprint import DecoderBlueprint
from fusewire.models.llama_family import family, family_layer, sizes
from fusewire.models.rope_config import read_rope


def blueprint(config: Config) -> DecoderBlueprint:
    size = sizes(config)
    eps = config.number("rms_norm_eps", 1e-6)
    bias = config.flag("attention_bias", False)
    rope = read_rope(config, size.head_dim)
    layers = [
        family_layer(
            index,
            size,
            eps,
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=config.flag("mlp_bias", False),
            rope=rope,
        )
        for index in range(config.size("num_hidden_layers", most=4096))
    ]
    return family(config, size, layers, eps, eos=2)

"""Qwen 3 (Yang et al., 2025): Llama with a norm on each query and key head."""

from __future__ import annotations

from fusewire.models.config import Config
from fusewire.models.decoder_blueprint import DecoderBlueprint
from fusewire.models.llama_family import family, family_layer, head_norms, sizes
from fusewire.models.rope_config import read_rope
from fusewire.models.windows import switched_windows


def blueprint(config: Config) -> DecoderBlueprint:
    size = sizes(config, head_dim=128, kv_heads=32)
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
            rope=rope,
            window=window,
            **head_norms(index, size, eps),
        )
        for index, window in enumerate(switched_windows(config))
    ]
    return family(config, size, layers, eps, eos=None)

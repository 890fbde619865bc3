"""Qwen 2 and 2.5 (Yang et al., 2024): Llama with biases on query, key and value."""

from __future__ import annotations

from fusewire.models.config import Config
from fusewire.models.decoder_blueprint import DecoderBlueprint
from fusewire.models.llama_family import family, family_layer, sizes
from fusewire.models.rope_config import read_rope
from fusewire.models.windows import switched_windows


def blueprint(config: Config) -> DecoderBlueprint:
    size = sizes(config, kv_heads=32)
    eps = config.number("rms_norm_eps", 1e-6)
    rope = read_rope(config, size.head_dim)
    layers = [
        family_layer(index, size, eps, qkv_bias=True, rope=rope, window=window)
        for index, window in enumerate(switched_windows(config))
    ]
    return family(config, size, layers, eps, eos=None)

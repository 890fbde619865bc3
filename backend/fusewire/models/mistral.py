"""Mistral (Jiang et al., 2023): Llama with a sliding window in every layer, or in none."""

from __future__ import annotations

from fusewire.models.config import Config
from fusewire.models.decoder_blueprint import DecoderBlueprint
from fusewire.models.llama_family import family, family_layer, sizes
from fusewire.models.rope_config import read_rope


def blueprint(config: Config) -> DecoderBlueprint:
    if config.given("layer_types"):
        raise config.fault("layer_types", config.values["layer_types"], "null")
    size = sizes(config, kv_heads=8)
    eps = config.number("rms_norm_eps", 1e-6)
    rope = read_rope(config, size.head_dim)
    window = config.size_or_null("sliding_window", 4096) or 0
    layers = [
        family_layer(index, size, eps, rope=rope, window=window)
        for index in range(config.size("num_hidden_layers", most=4096))
    ]
    return family(config, size, layers, eps, eos=2)

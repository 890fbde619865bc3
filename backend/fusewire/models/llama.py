"""Llama, and models that differ from it in a few details: Mistral, Qwen 2 and 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.llama_family import Sizes, family, family_layer, sizes
from fusewire.models.rope_config import read_rope
from fusewire.models.windows import switched_windows


def llama(config: Config) -> Blueprint:
    """Llama 2 and 3 (Touvron et al., 2023; Grattafiori et al., 2024)."""
    bias, mlp_bias = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    biases = {"qkv_bias": bias, "output_bias": bias, "mlp_bias": mlp_bias}
    return _blueprint(config, sizes(config), [0] * _layers(config), eos=2, **biases)


def mistral(config: Config) -> Blueprint:
    """Mistral (Jiang et al., 2023): a sliding window in all layers, or in none."""
    if config.given("layer_types"):
        raise config.fault("layer_types", config.values["layer_types"], "null")
    window = config.size_or_null("sliding_window", 4096) or 0
    return _blueprint(config, sizes(config, kv_heads=8), [window] * _layers(config), eos=2)


def qwen2(config: Config) -> Blueprint:
    """Qwen 2 and 2.5 (Yang et al., 2024): biases on query, key and value."""
    size = sizes(config, kv_heads=32)
    return _blueprint(config, size, switched_windows(config), eos=None, qkv_bias=True)


def qwen3(config: Config) -> Blueprint:
    """Qwen 3 (Yang et al., 2025): a norm of each query and key head."""
    size = sizes(config, head_dim=128, kv_heads=32)
    bias = config.flag("attention_bias", False)
    biases = {"qkv_bias": bias, "output_bias": bias}
    return _blueprint(config, size, switched_windows(config), eos=None, norm_heads=True, **biases)


def _layers(config: Config) -> int:
    return config.size("num_hidden_layers", most=4096)


def _blueprint(
    config: Config,
    size: Sizes,
    windows: Sequence[int],
    *,
    eos: int | None,
    **options: Any,  # options of family_layer
) -> Blueprint:
    eps = config.number("rms_norm_eps", 1e-6)
    rope = read_rope(config, size.head_dim)
    activation = config.activation("hidden_act", "silu")
    layers = [
        family_layer(index, size, eps, activation, rope=rope, window=window, **options)
        for index, window in enumerate(windows)
    ]
    return family(config, size, layers, eps, eos=eos)

"""Phi-3 and Phi-4-mini (Abdin et al., 2024): Llama with stacked weights, and longrope."""

from __future__ import annotations

from dataclasses import replace

from fusewire.models.blueprint import Dense
from fusewire.models.config import Config
from fusewire.models.decoder_blueprint import DecoderBlueprint, DecoderLayer
from fusewire.models.llama_family import Sizes, family, family_layer, sizes
from fusewire.models.rope import Rope
from fusewire.models.rope_config import read_rope

_TYPES = {"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}


def blueprint(config: Config) -> DecoderBlueprint:
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
        _layer(index, size, eps, rope, window)
        for index in range(config.size("num_hidden_layers", most=4096))
    ]
    return family(config, size, layers, eps, eos=32000)


def _layer(index: int, size: Sizes, eps: float, rope: Rope, window: int) -> DecoderLayer:
    layer = family_layer(index, size, eps, rope=rope, window=window)
    root = f"layers.{index}"
    return replace(
        layer,
        qkv=Dense((f"{root}.self_attn.qkv_proj",), size.hidden, layer.qkv.outputs, bias=False),
        intermediate=Dense(
            (f"{root}.mlp.gate_up_proj",), size.hidden, layer.intermediate.outputs, bias=False
        ),
    )

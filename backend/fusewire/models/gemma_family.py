"""What Gemma 2 and 3 share: each part normed before and after, norms stored as their difference
from 1, embeddings times sqrt(hidden_size), a scale of its own for the attention scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.models.config import Config
from fusewire.models.decoder_blueprint import DecoderBlueprint, DecoderLayer
from fusewire.models.llama_family import Sizes, family, family_layer, head_norms, rms_norm
from fusewire.models.rope import Rope


def gemma(
    config: Config,
    size: Sizes,
    ropes: Sequence[Rope],
    windows: Sequence[int],
    *,
    norm_heads: bool,
    soft_cap: float,
    final_soft_cap: float,
) -> DecoderBlueprint:
    """`ropes` and `windows` are those of each layer."""
    if config.values.get("use_bidirectional_attention"):
        raise config.fault("use_bidirectional_attention", True, "false")
    eps = config.number("rms_norm_eps", 1e-6)
    bias = config.flag("attention_bias", False)
    scale = config.number("query_pre_attn_scalar", 256) ** -0.5

    def layer(index: int, rope: Rope, window: int) -> DecoderLayer:
        norms: dict[str, Any] = {
            part: rms_norm(f"layers.{index}.{name}_layernorm", size.hidden, eps, one_plus=True)
            for part, name in (
                ("attention_norm", "input"),
                ("attention_post_norm", "post_attention"),
                ("output_norm", "pre_feedforward"),
                ("output_post_norm", "post_feedforward"),
            )
        }
        if norm_heads:
            norms |= head_norms(index, size, eps, one_plus=True)
        return family_layer(
            index,
            size,
            eps,
            qkv_bias=bias,
            output_bias=bias,
            scale=scale,
            rope=rope,
            window=window,
            **norms,
        )

    layers = [
        layer(index, rope, window)
        for index, (rope, window) in enumerate(zip(ropes, windows, strict=True))
    ]
    return family(
        config,
        size,
        layers,
        eps,
        eos=1,
        activation=config.activation("hidden_activation", "gelu_pytorch_tanh"),
        tied=True,
        scale=size.hidden**0.5,
        one_plus=True,
        soft_cap=soft_cap,
        final_soft_cap=final_soft_cap,
    )

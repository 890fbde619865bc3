"""What Gemma 2 and 3 share: norms before and after each sublayer, norm weights stored as their
difference from 1, embeddings times sqrt(hidden_size), a configured scale of the attention
scores."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.llama_family import Norms, Sizes, family, family_layer
from fusewire.models.rope import Rope

_SANDWICH: Norms = (
    {"input_norm": "input", "output_norm": "post_attention"},
    {"input_norm": "pre_feedforward", "output_norm": "post_feedforward"},
)


def gemma(
    config: Config,
    size: Sizes,
    ropes: Sequence[Rope],
    windows: Sequence[int],
    *,
    norm_heads: bool,
    soft_cap: float,
    final_soft_cap: float,
) -> Blueprint:
    """Builds the blueprint. `ropes` and `windows`: those of each layer."""
    if config.values.get("use_bidirectional_attention"):
        raise config.fault("use_bidirectional_attention", True, "false")
    eps = config.number("rms_norm_eps", 1e-6)
    bias = config.flag("attention_bias", False)
    layers = [
        family_layer(
            index,
            size,
            eps,
            config.activation("hidden_activation", "gelu_pytorch_tanh"),
            qkv_bias=bias,
            output_bias=bias,
            norms=_SANDWICH,
            norm_heads=norm_heads,
            one_plus=True,
            scale=config.number("query_pre_attn_scalar", 256) ** -0.5,
            soft_cap=soft_cap,
            rope=rope,
            window=window,
        )
        for index, (rope, window) in enumerate(zip(ropes, windows, strict=True))
    ]
    return family(
        config,
        size,
        layers,
        eps,
        eos=1,
        tied=True,
        scale=size.hidden**0.5,
        one_plus=True,
        final_soft_cap=final_soft_cap,
    )

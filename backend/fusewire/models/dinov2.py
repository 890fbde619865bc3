"""DINOv2 (Oquab et al., 2024): ViT with scaled residuals, and a gated feed-forward in its largest
model."""

from __future__ import annotations

from dataclasses import replace

from fusewire.models.blueprint import Blueprint, Head, Stack
from fusewire.models.config import Config
from fusewire.models.image_parts import LayerNames, patches, pre_norm_layers
from fusewire.models.stored_weights import Dense, Norm, Values

_DENSE = LayerNames(
    qkv=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    attention_output="attention.output.dense",
    attention_norm="norm1",
    intermediate="mlp.fc1",
    output="mlp.fc2",
    output_norm="norm2",
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
)
_GATED = replace(_DENSE, intermediate="mlp.weights_in", output="mlp.weights_out")


def blueprint(config: Config) -> Blueprint:
    hidden, heads = config.width()
    eps = config.number("layer_norm_eps", 1e-6)
    labels = len(config.labels())
    gated = config.flag("use_swiglu_ffn", False)
    intermediate = int(hidden * config.number("mlp_ratio", 4))
    if gated:  # three matrices in place of two: 2 / 3 of the size, rounded up to a multiple of 8
        intermediate = (int(intermediate * 2 / 3) + 7) // 8 * 8
    return Blueprint(
        prefix="dinov2",
        stack=Stack(
            hidden_size=hidden,
            max_length=0,
            embeddings=patches(
                config,
                hidden,
                projection="embeddings.patch_embeddings.projection",
                position="embeddings.position_embeddings",
                leading=(Values("embeddings.cls_token", (1, 1, hidden)),),
            ),
            layers=pre_norm_layers(
                config,
                "encoder.layer",
                _GATED if gated else _DENSE,
                hidden,
                heads,
                intermediate,
                eps,
                qkv_bias=config.flag("qkv_bias", True),
                gated=gated,
            ),
            final_norm=Norm("layernorm", hidden, eps),
        ),
        task_heads={
            "label": Head("leading_and_mean", (Dense(("classifier",), 2 * hidden, labels),)),
            "embed": Head("cls", ()),
        },
        unread=("classifier.", "embeddings.mask_token"),
        aliases={},
    )

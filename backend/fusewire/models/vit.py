"""ViT (Dosovitskiy et al., 2021) and DeiT (Touvron et al., 2021), which has an additional token."""

from __future__ import annotations

from fusewire.models.blueprint import Blueprint, Head, Stack
from fusewire.models.config import Config
from fusewire.models.image_parts import LayerNames, patches, pre_norm_layers
from fusewire.models.stored_weights import Dense, Norm, Values

NAMES = LayerNames(
    qkv=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    attention_output="attention.output.dense",
    attention_norm="layernorm_before",
    intermediate="intermediate.dense",
    output="output.dense",
    output_norm="layernorm_after",
)


def vit(config: Config) -> Blueprint:
    return _blueprint(config, "vit", ("cls_token",))


def deit(config: Config) -> Blueprint:
    """The logits of DeiTForImageClassificationWithTeacher are the mean of two classifiers."""
    return _blueprint(config, "deit", ("cls_token", "distillation_token"))


def _blueprint(config: Config, prefix: str, leading: tuple[str, ...]) -> Blueprint:
    hidden, heads = config.width()
    eps = config.number("layer_norm_eps", 1e-12)
    labels = len(config.labels())
    taught = config.values.get("architectures") == ["DeiTForImageClassificationWithTeacher"]
    if taught:
        names = ("cls_classifier", "distillation_classifier")
        label = Head("leading", (Dense(names, 2 * hidden, labels, averaged=True),))
    else:
        label = Head("cls", (Dense(("classifier",), hidden, labels),))
    return Blueprint(
        prefix=prefix,
        stack=Stack(
            hidden_size=hidden,
            max_length=0,
            embeddings=patches(
                config,
                hidden,
                projection="embeddings.patch_embeddings.projection",
                position="embeddings.position_embeddings",
                leading=tuple(Values(f"embeddings.{name}", (1, 1, hidden)) for name in leading),
            ),
            layers=pre_norm_layers(
                config,
                "encoder.layer",
                NAMES,
                hidden,
                heads,
                config.size("intermediate_size", 3072),
                eps,
                qkv_bias=config.flag("qkv_bias", True),
            ),
            final_norm=Norm("layernorm", hidden, eps),
        ),
        task_heads={"label": label, "embed": Head("cls", ())},
        unread=(
            "pooler.",
            "classifier.",
            "cls_classifier.",
            "distillation_classifier.",
            "decoder.",
            "embeddings.mask_token",
        ),
        aliases={},
    )

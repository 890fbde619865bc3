"""SigLIP (Zhai et al., 2023) and SigLIP 2 at fixed resolution: an encoder of images with attention
pooling, and a bidirectional one of texts, which are padded to a fixed length."""

from __future__ import annotations

from dataclasses import replace

from fusewire.models.blueprint import AttentionPooling, Blueprint, CosineLogits, Head, Stack
from fusewire.models.config import Config
from fusewire.models.image_parts import feed_forward, patches, pre_norm_layers
from fusewire.models.image_text_parts import LAYERS, NAMES, text_stack, tower
from fusewire.models.stored_weights import Dense, Norm, Values

_SHARED = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_VISION = _SHARED | {"image_size": 224, "patch_size": 16}
_TEXT = _SHARED | {"vocab_size": 32000, "max_position_embeddings": 64}
_BOTH = ("logit_scale", "logit_bias", "classifier.")


def vision(config: Config) -> Blueprint:
    """The image tower of a SiglipModel or a SiglipForImageClassification."""
    alone = vision_alone(config)
    classifier = Dense(("classifier",), alone.hidden_size, len(config.labels()))
    return replace(alone, task_heads={"label": Head("mean", (classifier,)), **alone.task_heads})


def vision_alone(config: Config) -> Blueprint:
    """The image tower of a SiglipVisionModel."""
    images = tower(config, "vision", _VISION)
    hidden, heads = images.width()
    eps = images.number("layer_norm_eps")
    intermediate = images.size("intermediate_size")
    pooling = AttentionPooling(
        probe=Values("head.probe", (1, 1, hidden)),
        weight=Values("head.attention.in_proj_weight", (3 * hidden, hidden)),
        bias=Values("head.attention.in_proj_bias", (3 * hidden,)),
        output=Dense(("head.attention.out_proj",), hidden, hidden),
        heads=heads,
        norm=Norm("head.layernorm", hidden, eps),
        feed_forward=feed_forward(images, "head.mlp.fc1", "head.mlp.fc2", hidden, intermediate),
    )
    return Blueprint(
        prefix="vision_model",
        stack=Stack(
            hidden_size=hidden,
            max_length=0,
            embeddings=patches(
                images,
                hidden,
                projection="embeddings.patch_embedding",
                position="embeddings.position_embedding.weight",
                leading=(),
                batched=False,
            ),
            layers=pre_norm_layers(images, LAYERS, NAMES, hidden, heads, intermediate, eps),
            final_norm=Norm("post_layernorm", hidden, eps),
        ),
        task_heads={"embed": Head(pooling, ())} if images.flag("vision_use_head", True) else {},
        unread=("text_model.", "head.", *_BOTH),
        aliases={},
    )


def text(config: Config) -> Blueprint:
    """The text tower of a SiglipModel. A text's embedding is that of its last token, whether
    padding or not."""
    texts = tower(config, "text", _TEXT)
    hidden, _ = texts.width()
    size = texts.size_or_null("projection_size", None) or hidden
    logits = CosineLogits(Values("logit_scale", (1,)), Values("logit_bias", (1,)))
    return Blueprint(
        prefix="text_model",
        stack=text_stack(texts, causal=False),
        task_heads={"embed": Head("last", (Dense(("head",), hidden, size),), logits=logits)},
        unread=("vision_model.", *_BOTH),
        aliases={},
    )

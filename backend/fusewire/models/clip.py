"""CLIP (Radford et al., 2021): an encoder of images and a causal encoder of texts, with projections
to a shared space."""

from __future__ import annotations

from dataclasses import replace

from fusewire.models.blueprint import Blueprint, CosineLogits, Head, Stack
from fusewire.models.config import Config
from fusewire.models.image_parts import patches, pre_norm_layers
from fusewire.models.image_text_parts import LAYERS, NAMES, text_stack, tower
from fusewire.models.stored_weights import Dense, Norm, Values

_LAYERS = {"num_hidden_layers": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_VISION = _LAYERS | {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "image_size": 224,
    "patch_size": 32,
}
_TEXT = _LAYERS | {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 49408,
    "max_position_embeddings": 77,
    "eos_token_id": 49407,
}
_BOTH = ("logit_scale", "text_projection.", "visual_projection.", "classifier.")


def vision(config: Config) -> Blueprint:
    """The image tower of a CLIPModel or a CLIPForImageClassification."""
    alone = vision_alone(config)
    classifier = Dense(("classifier",), alone.hidden_size, len(config.labels()))
    label = Head("mean_of_patches", (classifier,))
    return replace(alone, task_heads={"label": label, **alone.task_heads})


def vision_alone(config: Config) -> Blueprint:
    """The image tower of a CLIPVisionModelWithProjection."""
    images = tower(config, "vision", _VISION)
    hidden, heads = images.width()
    eps = images.number("layer_norm_eps")
    projection = Dense(
        ("visual_projection",), hidden, config.size("projection_dim", 512), bias=False
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
                leading=(Values("embeddings.class_embedding", (hidden,)),),
                bias=False,
                batched=False,
                norm=Norm("pre_layrnorm", hidden, eps),
            ),
            layers=pre_norm_layers(
                images, LAYERS, NAMES, hidden, heads, images.size("intermediate_size"), eps
            ),
        ),
        task_heads={
            "embed": Head("cls", (projection,), norm=Norm("post_layernorm", hidden, eps)),
        },
        unread=("text_model.", "post_layernorm.", *_BOTH),
        aliases={},
    )


def text(config: Config) -> Blueprint:
    """The text tower of a CLIPModel. A text's embedding is that of its end token, the last token
    that is read."""
    texts = tower(config, "text", _TEXT)
    hidden, _ = texts.width()
    projection = Dense(("text_projection",), hidden, config.size("projection_dim", 512), bias=False)
    logits = CosineLogits(Values("logit_scale", ()))
    return Blueprint(
        prefix="text_model",
        stack=text_stack(texts, causal=True),
        task_heads={"embed": Head("last", (projection,), logits=logits)},
        unread=("vision_model.", *_BOTH),
        aliases={},
        eos_token_ids=(texts.size("eos_token_id", least=0),),
    )

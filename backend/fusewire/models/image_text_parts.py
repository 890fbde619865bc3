"""What CLIP and SigLIP have in common: an encoder of images and one of texts, which differ only in
their input block, and whose embeddings are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.models.blueprint import Embeddings, Stack
from fusewire.models.config import Config
from fusewire.models.image_parts import LayerNames, pre_norm_layers
from fusewire.models.stored_weights import Norm, Table

NAMES = LayerNames(
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.out_proj",
    attention_norm="layer_norm1",
    intermediate="mlp.fc1",
    output="mlp.fc2",
    output_norm="layer_norm2",
)
LAYERS = "encoder.layers"


def tower(config: Config, part: str, defaults: Mapping[str, Any]) -> Config:
    """Returns the configuration of one tower, "text" or "vision", from that of both; the
    configuration of a single tower is its own. Old CLIP folders have a second copy under another
    key, which takes precedence, as in transformers."""
    values = config.values
    key = f"{part}_config_dict" if values.get(f"{part}_config_dict") else f"{part}_config"
    given = values.get(key)
    if given is None:
        given = values
    if not isinstance(given, dict):
        raise config.fault(key, given, "a map of settings")
    return Config({**defaults, **given})


def text_stack(text: Config, *, causal: bool) -> Stack:
    hidden, heads = text.width()
    eps = text.number("layer_norm_eps")
    positions = text.size("max_position_embeddings")
    return Stack(
        hidden_size=hidden,
        max_length=positions,
        embeddings=Embeddings(
            Table("embeddings.token_embedding.weight", text.size("vocab_size"), hidden),
            Table("embeddings.position_embedding.weight", positions, hidden),
        ),
        layers=pre_norm_layers(
            text,
            LAYERS,
            NAMES,
            hidden,
            heads,
            text.size("intermediate_size"),
            eps,
            right=0 if causal else None,
        ),
        final_norm=Norm("final_layer_norm", hidden, eps),
    )

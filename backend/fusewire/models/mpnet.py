"""MPNet (Song et al., 2020): RoBERTa's positions plus one relative-position bias for all layers."""

from __future__ import annotations

from fusewire.models.blueprint import Blueprint, Table
from fusewire.models.config import Config
from fusewire.models.post_norm import LayerNames, post_norm_layer, summed_embeddings, tied
from fusewire.models.roberta import OTHER_HEADS, roberta_heads

# Fixed in the architecture, whatever the configuration says.
PADDING_INDEX = 1
BUCKETS = 32

NAMES = LayerNames(
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    attention_output="attention.attn.o",
    attention_norm="attention.LayerNorm",
    intermediate="intermediate.dense",
    output="output.dense",
    output_norm="output.LayerNorm",
)


def blueprint(config: Config) -> Blueprint:
    hidden, heads = config.width()
    intermediate = config.size("intermediate_size")
    eps = config.number("layer_norm_eps", 1e-12)
    positions = config.size("max_position_embeddings", least=PADDING_INDEX + 2)
    buckets = config.size("relative_attention_num_buckets", BUCKETS)
    if buckets != BUCKETS:
        raise config.fault("relative_attention_num_buckets", buckets, str(BUCKETS))
    return Blueprint(
        prefix="mpnet",
        hidden_size=hidden,
        heads=heads,
        activation=config.activation("hidden_act", "gelu"),
        norm_eps=eps,
        embeddings=summed_embeddings(config, hidden, eps, typed=False),
        layers=tuple(
            post_norm_layer(f"encoder.layer.{index}", NAMES, hidden, intermediate, eps)
            for index in range(config.size("num_hidden_layers", most=4096))
        ),
        max_length=positions - PADDING_INDEX - 1,
        padding_index=PADDING_INDEX,
        relative_bias=Table("encoder.relative_attention_bias.weight", BUCKETS, heads),
        task_heads=roberta_heads(config, hidden, eps),
        other_heads=OTHER_HEADS,
        aliases=tied(config, "lm_head.decoder", "lm_head.bias"),
    )

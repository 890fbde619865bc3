"""MPNet (Song et al., 2020): RoBERTa's positions plus one relative-position bias for all layers."""

from __future__ import annotations

from fusewire.models.blueprint import Blueprint, PositionBias, Stack
from fusewire.models.config import Config
from fusewire.models.post_norm import LayerNames, post_norm_layers, summed_embeddings, tied
from fusewire.models.roberta import OTHER_HEADS, roberta_heads
from fusewire.models.stored_weights import Table

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
    eps = config.number("layer_norm_eps", 1e-12)
    positions = config.size("max_position_embeddings", least=PADDING_INDEX + 2)
    buckets = config.size("relative_attention_num_buckets", BUCKETS)
    if buckets != BUCKETS:
        raise config.fault("relative_attention_num_buckets", buckets, str(BUCKETS))
    bias = PositionBias(Table("encoder.relative_attention_bias.weight", BUCKETS, heads))
    return Blueprint(
        prefix="mpnet",
        stack=Stack(
            hidden_size=hidden,
            max_length=positions - PADDING_INDEX - 1,
            embeddings=summed_embeddings(
                config, hidden, eps, typed=False, padding_index=PADDING_INDEX
            ),
            layers=post_norm_layers(config, NAMES, bias),
        ),
        task_heads=roberta_heads(config, hidden, eps),
        unread=OTHER_HEADS,
        aliases=tied(config, "lm_head.decoder", "lm_head.bias"),
    )

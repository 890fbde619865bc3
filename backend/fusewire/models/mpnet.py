"""MPNet (Song et al., 2020): RoBERTa's positions plus one relative-position bias for all layers."""

from __future__ import annotations

from fusewire.models.blueprint import Blueprint, Norm, Table
from fusewire.models.config import Config
from fusewire.models.post_norm import (
    LayerNames,
    first_token_head,
    label_count,
    pooler,
    post_norm_layer,
    summed_embeddings,
    tied,
    token_heads,
    vocabulary_head,
)

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
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    config.head_size(hidden, heads, "num_attention_heads")
    intermediate = config.size("intermediate_size")
    eps = config.number("layer_norm_eps", 1e-12)
    embeddings = summed_embeddings(config, hidden, eps, typed=False)
    labels = label_count(config)
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
        embeddings=embeddings,
        layers=tuple(
            post_norm_layer(f"encoder.layer.{index}", NAMES, hidden, intermediate, eps)
            for index in range(config.size("num_hidden_layers", most=4096))
        ),
        max_length=positions - PADDING_INDEX - 1,
        padding_index=PADDING_INDEX,
        relative_bias=Table("encoder.relative_attention_bias.weight", BUCKETS, heads),
        task_heads={
            "classify": first_token_head(
                "classifier.dense", "tanh", "classifier.out_proj", hidden, labels
            ),
            **token_heads(hidden, labels),
            "fill": vocabulary_head(
                "lm_head.dense",
                "gelu_erf",
                Norm("lm_head.layer_norm", hidden, eps),
                "lm_head.decoder",
                hidden,
                embeddings.word.rows,
            ),
            "pooler": pooler("pooler.dense", hidden),
        },
        other_heads=("pooler.", "lm_head.", "classifier.", "qa_outputs."),
        aliases=tied(config, "lm_head.decoder", "lm_head.bias"),
    )

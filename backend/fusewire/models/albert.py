"""ALBERT (Lan et al., 2019): narrow embeddings with a projection, and layers that share weights."""

from __future__ import annotations

from fusewire.models.blueprint import Blueprint, Head, Layer, Stack
from fusewire.models.config import Config
from fusewire.models.post_norm import (
    LayerNames,
    Sizes,
    label_count,
    pooler,
    post_norm_layer,
    summed_embeddings,
    tied,
    token_heads,
    vocabulary_head,
)
from fusewire.models.stored_weights import Dense, Norm

NAMES = LayerNames(
    qkv=("attention.query", "attention.key", "attention.value"),
    attention_output="attention.dense",
    attention_norm="attention.LayerNorm",
    intermediate="ffn",
    output="ffn_output",
    output_norm="full_layer_layer_norm",
)


def blueprint(config: Config) -> Blueprint:
    hidden, heads = config.width()
    narrow = config.size("embedding_size", 128)
    eps = config.number("layer_norm_eps", 1e-12)
    activation = config.activation("hidden_act", "gelu_new")
    sizes = hidden, heads, config.size("intermediate_size"), activation, eps
    embeddings = summed_embeddings(
        config,
        narrow,
        eps,
        typed=True,
        projection=Dense(("encoder.embedding_hidden_mapping_in",), narrow, hidden),
    )
    labels = label_count(config)
    pool = pooler("pooler", hidden)
    return Blueprint(
        prefix="albert",
        stack=Stack(
            hidden_size=hidden,
            max_length=config.size("max_position_embeddings"),
            embeddings=embeddings,
            layers=_shared_layers(config, sizes),
        ),
        task_heads={
            "classify": Head("cls", (*pool.chain, Dense(("classifier",), hidden, labels))),
            **token_heads(hidden, labels),
            "fill": vocabulary_head(
                "predictions.dense",
                activation,
                Norm("predictions.LayerNorm", narrow, eps),
                "predictions.decoder",
                hidden,
                embeddings.word.rows,
            ),
            "pooler": pool,
        },
        unread=("pooler.", "predictions.", "sop_classifier.", "classifier.", "qa_outputs."),
        aliases=tied(config, "predictions.decoder", "predictions.bias"),
    )


def _shared_layers(config: Config, sizes: Sizes) -> tuple[Layer, ...]:
    """Layer i runs group i * groups / layers. A group consists of one or more inner layers."""
    layers = config.size("num_hidden_layers", most=4096)
    groups = config.size("num_hidden_groups", 1, most=layers)
    inner = config.size("inner_group_num", 1, most=64)
    return tuple(
        post_norm_layer(
            f"encoder.albert_layer_groups.{int(index / (layers / groups))}.albert_layers.{step}",
            NAMES,
            sizes,
        )
        for index in range(layers)
        for step in range(inner)
    )

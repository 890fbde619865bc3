"""DistilBERT (Sanh et al., 2019): BERT without token types and pooler, with other names."""

from __future__ import annotations

from fusewire.models.blueprint import Blueprint, Stack
from fusewire.models.config import Config
from fusewire.models.post_norm import (
    LayerNames,
    first_token_head,
    label_count,
    post_norm_layer,
    summed_embeddings,
    tied,
    token_heads,
    vocabulary_head,
)
from fusewire.models.stored_weights import Norm

EPS = 1e-12  # fixed in the architecture, not in its configuration

NAMES = LayerNames(
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    attention_output="attention.out_lin",
    attention_norm="sa_layer_norm",
    intermediate="ffn.lin1",
    output="ffn.lin2",
    output_norm="output_layer_norm",
)


def blueprint(config: Config) -> Blueprint:
    hidden, heads = config.width("dim", "n_heads")
    activation = config.activation("activation", "gelu")
    sizes = hidden, heads, config.size("hidden_dim"), activation, EPS
    embeddings = summed_embeddings(config, hidden, EPS, typed=False)
    labels = label_count(config)
    return Blueprint(
        prefix="distilbert",
        stack=Stack(
            hidden_size=hidden,
            max_length=config.size("max_position_embeddings"),
            embeddings=embeddings,
            layers=tuple(
                post_norm_layer(f"transformer.layer.{index}", NAMES, sizes)
                for index in range(config.size("n_layers", most=4096))
            ),
        ),
        task_heads={
            "classify": first_token_head("pre_classifier", "relu", "classifier", hidden, labels),
            **token_heads(hidden, labels),
            "fill": vocabulary_head(
                "vocab_transform",
                activation,
                Norm("vocab_layer_norm", hidden, EPS),
                "vocab_projector",
                hidden,
                embeddings.word.rows,
            ),
        },
        unread=("vocab_", "pre_classifier.", "classifier.", "qa_outputs."),
        aliases=tied(config, "vocab_projector"),
    )

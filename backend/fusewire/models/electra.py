"""ELECTRA (Clark et al., 2020): BERT's layers under embeddings that may be narrower; no pooler."""

from __future__ import annotations

from fusewire.models.bert import bert_layers
from fusewire.models.blueprint import Blueprint, Dense, Norm
from fusewire.models.config import Config
from fusewire.models.post_norm import (
    first_token_head,
    label_count,
    summed_embeddings,
    tied,
    token_heads,
    vocabulary_head,
)


def blueprint(config: Config) -> Blueprint:
    hidden, heads = config.width()
    narrow = config.size("embedding_size", 128)
    eps = config.number("layer_norm_eps", 1e-12)
    projection = Dense(("embeddings_project",), narrow, hidden) if narrow != hidden else None
    embeddings = summed_embeddings(config, narrow, eps, typed=True, projection=projection)
    labels = label_count(config)
    return Blueprint(
        prefix="electra",
        hidden_size=hidden,
        heads=heads,
        activation=config.activation("hidden_act", "gelu"),
        norm_eps=eps,
        embeddings=embeddings,
        layers=bert_layers(config, hidden, eps),
        max_length=config.size("max_position_embeddings"),
        task_heads={
            "classify": first_token_head(
                "classifier.dense", "gelu_erf", "classifier.out_proj", hidden, labels
            ),
            **token_heads(hidden, labels),
            "fill": vocabulary_head(
                "generator_predictions.dense",
                "gelu_erf",
                Norm("generator_predictions.LayerNorm", narrow, eps),
                "generator_lm_head",
                hidden,
                embeddings.word.rows,
            ),
        },
        other_heads=(
            "generator_predictions.",
            "generator_lm_head.",
            "discriminator_predictions.",
            "sequence_summary.",
            "classifier.",
            "qa_outputs.",
        ),
        aliases=tied(config, "generator_lm_head"),
    )

"""ELECTRA (Clark et al., 2020): BERT's layers, embeddings that may be narrower, no pooler."""

from __future__ import annotations

from fusewire.models.bert import NAMES
from fusewire.models.blueprint import Blueprint, Stack
from fusewire.models.config import Config
from fusewire.models.post_norm import (
    first_token_head,
    label_count,
    post_norm_layers,
    summed_embeddings,
    tied,
    token_heads,
    vocabulary_head,
)
from fusewire.models.stored_weights import Dense, Norm


def blueprint(config: Config) -> Blueprint:
    hidden, _ = config.width()
    narrow = config.size("embedding_size", 128)
    eps = config.number("layer_norm_eps", 1e-12)
    projection = Dense(("embeddings_project",), narrow, hidden) if narrow != hidden else None
    embeddings = summed_embeddings(config, narrow, eps, typed=True, projection=projection)
    labels = label_count(config)
    return Blueprint(
        prefix="electra",
        stack=Stack(
            hidden_size=hidden,
            max_length=config.size("max_position_embeddings"),
            embeddings=embeddings,
            layers=post_norm_layers(config, NAMES),
        ),
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
        unread=(
            "generator_predictions.",
            "generator_lm_head.",
            "discriminator_predictions.",
            "sequence_summary.",
            "classifier.",
            "qa_outputs.",
        ),
        aliases=tied(config, "generator_lm_head"),
    )

"""BERT (Devlin et al., 2018): post-norm encoder, learned positions, tanh pooler."""

from __future__ import annotations

from fusewire.models.blueprint import Blueprint, Stack
from fusewire.models.config import Config
from fusewire.models.post_norm import (
    LayerNames,
    first_token_head,
    label_count,
    pooler,
    post_norm_layers,
    summed_embeddings,
    tied,
    token_heads,
    vocabulary_head,
)
from fusewire.models.stored_weights import Norm

# RoBERTa and ELECTRA name their layers the same way.
NAMES = LayerNames(
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    attention_output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    intermediate="intermediate.dense",
    output="output.dense",
    output_norm="output.LayerNorm",
)


def blueprint(config: Config) -> Blueprint:
    hidden, _ = config.width()
    eps = config.number("layer_norm_eps", 1e-12)
    activation = config.activation("hidden_act", "gelu")
    embeddings = summed_embeddings(config, hidden, eps, typed=True)
    labels = label_count(config)
    predictions = "cls.predictions"
    return Blueprint(
        prefix="bert",
        stack=Stack(
            hidden_size=hidden,
            max_length=config.size("max_position_embeddings"),
            embeddings=embeddings,
            layers=post_norm_layers(config, NAMES),
        ),
        task_heads={
            "classify": first_token_head("pooler.dense", "tanh", "classifier", hidden, labels),
            **token_heads(hidden, labels),
            "fill": vocabulary_head(
                f"{predictions}.transform.dense",
                activation,
                Norm(f"{predictions}.transform.LayerNorm", hidden, eps),
                f"{predictions}.decoder",
                hidden,
                embeddings.word.rows,
            ),
            "pooler": pooler("pooler.dense", hidden),
        },
        unread=("pooler.", "cls.", "classifier.", "qa_outputs."),
        aliases=tied(config, f"{predictions}.decoder", f"{predictions}.bias"),
    )

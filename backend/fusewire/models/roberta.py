"""RoBERTa (Liu et al., 2019), XLM-RoBERTa and CamemBERT: BERT's layers, positions that begin behind
the padding id, and a classifier of the first token without a pooler."""

from __future__ import annotations

from fusewire.models.bert import NAMES
from fusewire.models.blueprint import Blueprint, Head, Stack
from fusewire.models.config import Config
from fusewire.models.post_norm import (
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

# MPNet has the same heads.
OTHER_HEADS = ("pooler.", "lm_head.", "classifier.", "qa_outputs.")


def roberta_heads(config: Config, hidden: int, eps: float) -> dict[str, Head]:
    labels = label_count(config)
    return {
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
            config.size("vocab_size"),
        ),
        "pooler": pooler("pooler.dense", hidden),
    }


def blueprint(config: Config) -> Blueprint:
    hidden, _ = config.width()
    eps = config.number("layer_norm_eps", 1e-12)
    positions = config.size("max_position_embeddings")
    padding = config.size("pad_token_id", 1, least=0, most=positions - 2)
    return Blueprint(
        prefix="roberta",
        stack=Stack(
            hidden_size=hidden,
            max_length=positions - padding - 1,
            embeddings=summed_embeddings(config, hidden, eps, typed=True, padding_index=padding),
            layers=post_norm_layers(config, NAMES),
        ),
        task_heads=roberta_heads(config, hidden, eps),
        unread=OTHER_HEADS,
        aliases=tied(config, "lm_head.decoder", "lm_head.bias"),
    )

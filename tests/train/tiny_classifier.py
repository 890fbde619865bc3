"""A small model that classifies, and batches of it, alike in every process."""

from __future__ import annotations

import torch
import transformers

LABELS = 3


def classifier(dropout: float = 0.0) -> transformers.BertForSequenceClassification:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=LABELS,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return transformers.BertForSequenceClassification(config)


def examples(count: int) -> list[dict[str, object]]:
    """Of 2 to 12 tokens, padded to 12; the label is that of the first token, and learnable."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(count):
        length = int(torch.randint(2, 13, (), generator=generator))
        ids = torch.randint(1, 40, (12,), generator=generator)
        mask = (torch.arange(12) < length).long()
        label = ids[0] % LABELS
        made.append({"input_ids": ids * mask, "attention_mask": mask, "labels": label})
    return made


def batch(every: list[dict[str, object]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([one[name] for one in every]) for name in every[0]}

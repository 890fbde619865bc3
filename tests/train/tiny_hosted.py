"""Small models that hosts train, and batches of them, alike in every process."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.train.tiny_models import eager

LABELS = 3
KINDS = {
    "encoder": "BertForSequenceClassification",
    "decoder": "GPT2LMHeadModel",
    "encoder-decoder": "BartForConditionalGeneration",
}


def model_of(kind: str, dropout: float = 0.0) -> Any:
    """Of one of KINDS."""
    return classifier(dropout) if kind == "encoder" else eager(KINDS[kind], dropout)


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


def examples(count: int, kind: str = "encoder") -> list[dict[str, Any]]:
    """Of 2 to 12 tokens, padded to 12; the label is that of the first token, and learnable. Those
    of decoders are the tokens themselves, and targets of encoder-decoder models the same tokens
    from the last to the first."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(count):
        length = int(torch.randint(2, 13, (), generator=generator))
        ids = torch.randint(1, 40, (12,), generator=generator)
        mask = (torch.arange(12) < length).long()
        tokens = torch.where(mask.bool(), ids, -100)
        label = {"encoder": ids[0] % LABELS, "decoder": tokens}.get(kind)
        if label is None:
            label = torch.cat([tokens[:length].flip(0), tokens[length:]])
        made.append({"input_ids": ids * mask, "attention_mask": mask, "labels": label})
    return made


def batch(
    every: list[dict[str, Any]], device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    return {name: torch.stack([one[name] for one in every]).to(device) for name in every[0]}

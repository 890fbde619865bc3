"""The forward of BERT and its relatives: transformers' embeddings, our layers."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.utils.generic import can_return_tuple

from fusewire.errors import InvalidInput
from fusewire.train.arguments import ids_or_embeddings, refuse
from fusewire.train.packed import packed


@can_return_tuple
def forward(
    self: Any,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    token_type_ids: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    inputs_embeds: torch.Tensor | None = None,
    **kwargs: Any,
) -> BaseModelOutputWithPoolingAndCrossAttentions:
    """As the base model of transformers: takes ids or embeddings [batch, length, ...] and a mask,
    or one row of several sequences (`packed`)."""
    refuse(self, **kwargs)
    given = ids_or_embeddings(input_ids, inputs_embeds)
    tokens = packed((given.shape[0], given.shape[1]), attention_mask, None, kwargs, given.device)
    pooler = getattr(self, "pooler", None)
    if pooler is not None and not tokens.rows_begin:
        raise InvalidInput(
            "attention_mask",
            "padding in the first place of a row, which is pooled",
            "a token there",
            "pad on the right",
        )
    if position_ids is None:
        position_ids = _positions(self.embeddings, input_ids, given)
    arguments = {
        "input_ids": input_ids,
        "inputs_embeds": inputs_embeds,
        "position_ids": position_ids,
        "token_type_ids": token_type_ids,
    }
    x = self.embeddings(
        **{"input_ids": None}
        | {name: tokens.pack(value)[None] for name, value in arguments.items() if value is not None}
    )
    if hasattr(self, "embeddings_project"):  # ELECTRA's
        x = self.embeddings_project(x)
    layers = self.encoder.layer if hasattr(self, "encoder") else self.transformer.layer
    hidden = tokens.unpack(self.fusewire(x[0], tokens, None, layers))
    return BaseModelOutputWithPoolingAndCrossAttentions(
        last_hidden_state=hidden, pooler_output=None if pooler is None else pooler(hidden)
    )


def _positions(
    embeddings: Any, input_ids: torch.Tensor | None, given: torch.Tensor
) -> torch.Tensor:
    """Positions [batch or 1, length], counted as the embeddings do: RoBERTa's start after its
    padding id."""
    if not hasattr(embeddings, "create_position_ids_from_input_ids"):
        return torch.arange(given.shape[1], device=given.device)[None]
    padding = embeddings.padding_idx
    positions: torch.Tensor
    if input_ids is not None:
        positions = embeddings.create_position_ids_from_input_ids(input_ids, padding)
    else:
        positions = embeddings.create_position_ids_from_inputs_embeds(given, padding)
    return positions

"""The forward of ViT and DeiT: transformers' patches, our layers and final norm."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.generic import can_return_tuple

from fusewire.train.arguments import refuse
from fusewire.train.packed import Packed


@can_return_tuple
def forward(
    self: Any,
    pixel_values: torch.Tensor,
    bool_masked_pos: torch.Tensor | None = None,
    interpolate_pos_encoding: bool | None = None,
    **kwargs: Any,
) -> BaseModelOutputWithPooling:
    """As the base model of transformers: takes pixels [batch, channels, height, width]."""
    refuse(self, **kwargs)
    dtype = self.embeddings.patch_embeddings.projection.weight.dtype
    x = self.embeddings(
        pixel_values.to(dtype),
        bool_masked_pos=bool_masked_pos,
        interpolate_pos_encoding=bool(interpolate_pos_encoding),
    )
    tokens = Packed((x.shape[0], x.shape[1]), device=x.device)
    y = self.fusewire(tokens.pack(x), tokens, None, self.layers)
    hidden = tokens.unpack(y)
    pooled = None if self.pooler is None else self.pooler(hidden)
    return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled)

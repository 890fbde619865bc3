"""The forward of T5's stacks: transformers' embeddings and dropouts, our layers and final norm.
Encoder and decoder are of one class."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.generic import can_return_tuple

from fusewire.train.arguments import ids_or_embeddings, refuse, refuse_flattened
from fusewire.train.packed import packed
from fusewire.train.seq2seq import source_of


@can_return_tuple
def forward(
    self: Any,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    encoder_hidden_states: torch.Tensor | None = None,
    encoder_attention_mask: torch.Tensor | None = None,
    inputs_embeds: torch.Tensor | None = None,
    past_key_values: Any = None,
    use_cache: bool | None = None,
    **kwargs: Any,
) -> BaseModelOutputWithPastAndCrossAttentions:
    """As T5Stack: takes ids or embeddings [batch, length, ...] and a mask; a decoder also takes the
    output of the encoder [batch, source length, hidden] with its mask. Returns no KV cache,
    whatever `use_cache` says."""
    refuse(self, past_key_values=past_key_values, **kwargs)
    refuse_flattened(self, kwargs)
    given = ids_or_embeddings(input_ids, inputs_embeds)
    shape = (given.shape[0], given.shape[1])
    side = "decoder_" if self.is_decoder else ""
    tokens = packed(shape, attention_mask, None, {}, given.device, side)
    x = tokens.pack(given)
    if input_ids is not None:
        x = self.embed_tokens(x[None])[0]
    source = None
    if self.is_decoder:
        source = source_of(encoder_hidden_states, encoder_attention_mask, tokens.shape[0])
    hidden = self.fusewire(self.dropout(x), tokens, None, self.block, source)
    return BaseModelOutputWithPastAndCrossAttentions(
        last_hidden_state=tokens.unpack(self.dropout(hidden))
    )

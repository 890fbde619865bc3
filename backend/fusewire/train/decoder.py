"""The forward of decoders: transformers' embeddings, our layers and final norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    BaseModelOutputWithPastAndCrossAttentions,
)
from transformers.utils.generic import can_return_tuple

from fusewire.errors import InvalidInput, Unsupported
from fusewire.train.arguments import ids_or_embeddings, refuse
from fusewire.train.packed import Packed, packed


@can_return_tuple
def gpt2(
    self: Any,
    input_ids: torch.Tensor | None = None,
    past_key_values: Any = None,
    attention_mask: torch.Tensor | None = None,
    token_type_ids: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    inputs_embeds: torch.Tensor | None = None,
    use_cache: bool | None = None,
    **kwargs: Any,
) -> BaseModelOutputWithPastAndCrossAttentions:
    """As GPT2Model: takes ids or embeddings [batch, length, ...] and a mask, or one row of several
    sequences (`packed`). Returns no KV cache, whatever `use_cache` says."""
    refuse(self, past_key_values=past_key_values, **kwargs)
    tokens, embedded, positions = _inputs(
        self.wte, input_ids, inputs_embeds, attention_mask, position_ids, kwargs
    )
    x = embedded + self.wpe(positions)
    if token_type_ids is not None:
        x = x + self.wte(tokens.pack(token_type_ids))
    hidden = self.fusewire(self.drop(x), tokens, None, self.h)
    return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=tokens.unpack(hidden))


def gemma(self: Any, *args: Any, **kwargs: Any) -> Any:
    """As `llama`, for Gemma2Model and Gemma3TextModel. Raises Unsupported where transformers scales
    the embeddings in the model's own forward, as versions do whose embedding modules do not."""
    if not hasattr(self.embed_tokens, "embed_scale"):
        raise Unsupported(
            f"{type(self).__name__}.embed_tokens",
            type(self.embed_tokens).__name__,
            "a module that scales what it gives",
            "update transformers",
        )
    return llama(self, *args, **kwargs)


@can_return_tuple
def gpt_neox(
    self: Any,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    inputs_embeds: torch.Tensor | None = None,
    past_key_values: Any = None,
    use_cache: bool | None = None,
    **kwargs: Any,
) -> BaseModelOutputWithPast:
    """As GPTNeoXModel; otherwise as `llama`."""
    refuse(self, past_key_values=past_key_values, **kwargs)
    inputs = _inputs(self.embed_in, input_ids, inputs_embeds, attention_mask, position_ids, kwargs)
    return _rotary(self, *inputs, self.emb_dropout)


@can_return_tuple
def llama(
    self: Any,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    past_key_values: Any = None,
    inputs_embeds: torch.Tensor | None = None,
    use_cache: bool | None = None,
    **kwargs: Any,
) -> BaseModelOutputWithPast:
    """As LlamaModel: takes ids or embeddings [batch, length, ...] and a mask, or one row of several
    sequences (`packed`). Returns no KV cache, whatever `use_cache` says."""
    refuse(self, past_key_values=past_key_values, **kwargs)
    embed_tokens = self.embed_tokens
    inputs = _inputs(embed_tokens, input_ids, inputs_embeds, attention_mask, position_ids, kwargs)
    return _rotary(self, *inputs)


def _rotary(
    self: Any,
    tokens: Packed,
    embedded: torch.Tensor,
    positions: torch.Tensor,
    dropout: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> BaseModelOutputWithPast:
    """The layers of a model whose only positions are RoPE."""
    _check_positions(positions, tokens, self.fusewire.max_length)
    angles = positions.to(torch.int32)
    embedded = embedded if dropout is None else dropout(embedded)
    hidden = self.fusewire(embedded, tokens, angles, self.layers)
    return BaseModelOutputWithPast(last_hidden_state=tokens.unpack(hidden))


def _check_positions(positions: torch.Tensor, tokens: Packed, limit: int) -> None:
    """Raises InvalidInput for a position beyond the RoPE tables. On a GPU positions are not read,
    which would synchronise; there it raises for a sequence that is too long, and kernels give NaN
    for any other position beyond the tables."""
    least, most = 0, tokens.longest - 1
    if positions.device.type == "cpu":
        least, most = int(positions.min()), int(positions.max())
    if least < 0 or most >= limit:
        raise InvalidInput(
            "position_ids",
            str(least if least < 0 else most),
            f"0 to {limit - 1}, those of the config",
            "cut texts, raise max_position_embeddings of the config before replace, or train with "
            "transformers itself",
        )


def _inputs(
    embed_tokens: torch.nn.Module,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    flattening: dict[str, Any],
) -> tuple[Packed, torch.Tensor, torch.Tensor]:
    """The tokens, their embeddings [tokens, hidden] and their positions [tokens]."""
    given = ids_or_embeddings(input_ids, inputs_embeds)
    tokens = packed(
        (given.shape[0], given.shape[1]), attention_mask, position_ids, flattening, given.device
    )
    if position_ids is None:
        position_ids = torch.arange(given.shape[1], device=given.device)[None]
    embedded = (
        tokens.pack(given) if input_ids is None else embed_tokens(tokens.pack(given)[None])[0]
    )
    return tokens, embedded, tokens.pack(position_ids)

"""The forwards of an encoder and of a decoder that reads its output: transformers' embeddings, our
layers and final norms. Both sides are packed."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import dropout
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
)
from transformers.utils.generic import can_return_tuple

from fusewire.errors import InvalidInput, Unsupported
from fusewire.train.arguments import ids_or_embeddings, refuse, refuse_flattened
from fusewire.train.packed import Packed, packed
from fusewire.train.segment import Source
from fusewire.train.targets import target_mask


@can_return_tuple
def encoder(
    self: Any,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    inputs_embeds: torch.Tensor | None = None,
    **kwargs: Any,
) -> BaseModelOutput:
    """As BartEncoder and MarianEncoder: takes ids or embeddings [batch, length, ...] and a mask."""
    _refuse(self, kwargs)
    scale = getattr(self, "embed_scale", 1.0) if inputs_embeds is None else 1.0
    tokens, x = _inputs(self, input_ids, inputs_embeds, attention_mask, scale, "")
    hidden = self.fusewire(x, tokens, None, self.layers)
    return BaseModelOutput(last_hidden_state=tokens.unpack(hidden))


@can_return_tuple
def decoder(
    self: Any,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    encoder_hidden_states: torch.Tensor | None = None,
    encoder_attention_mask: torch.Tensor | None = None,
    past_key_values: Any = None,
    inputs_embeds: torch.Tensor | None = None,
    use_cache: bool | None = None,
    **kwargs: Any,
) -> BaseModelOutputWithPastAndCrossAttentions:
    """As BartDecoder and MarianDecoder: takes ids or embeddings [batch, length, ...] with a mask,
    and the output of the encoder [batch, source length, hidden] with its mask. Returns no KV cache,
    whatever `use_cache` says."""
    _refuse(self, {**kwargs, "past_key_values": past_key_values})
    scale = getattr(self, "embed_scale", 1.0)
    tokens, x = _inputs(self, input_ids, inputs_embeds, attention_mask, scale, "decoder_")
    source = source_of(encoder_hidden_states, encoder_attention_mask, tokens.shape[0])
    hidden = self.fusewire(x, tokens, None, self.layers, source)
    return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=tokens.unpack(hidden))


def mask_targets(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Pre-forward hook of a model. Where a target has `labels` [batch, length] and no mask,
    everything after the last label of its row is padding. No label depends on it, as a token of a
    target depends only on those before it. Raises InvalidInput for labels of another length than
    `decoder_input_ids`."""
    targets = args[2] if len(args) > 2 else kwargs.get("decoder_input_ids")
    mask = target_mask(kwargs.get("labels"), targets)
    if mask is None or len(args) > 3 or kwargs.get("decoder_attention_mask") is not None:
        return None
    return args, {**kwargs, "decoder_attention_mask": mask}


def _refuse(model: Any, arguments: dict[str, Any]) -> None:
    refuse(model, **arguments)
    refuse_flattened(model, arguments)
    if model.layerdrop:
        raise Unsupported(
            f"{type(model).__name__}.layerdrop",
            str(model.layerdrop),
            "0: no layer is left out",
            "set it to 0, or train it with transformers itself",
        )


def _inputs(
    stack: Any,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    scale: float,
    side: str,
) -> tuple[Packed, torch.Tensor]:
    """The tokens, and the input of the first layer [tokens, hidden]."""
    given = ids_or_embeddings(input_ids, inputs_embeds)
    shape = (given.shape[0], given.shape[1])
    tokens = packed(shape, attention_mask, None, {}, given.device, side)
    x = tokens.pack(given) if input_ids is None else stack.embed_tokens(tokens.pack(given)[None])[0]
    x = x * scale + _positions(stack, tokens, input_ids, given).view_as(x)
    if hasattr(stack, "layernorm_embedding"):
        x = stack.layernorm_embedding(x)
    return tokens, dropout(x, p=stack.dropout, training=stack.training)


def _positions(
    stack: Any, tokens: Packed, input_ids: torch.Tensor | None, given: torch.Tensor
) -> torch.Tensor:
    """The position of each token, by its place in its row. The module of M2M-100 counts the tokens
    of a row of ids that are not its padding id, whatever the mask is."""
    module = stack.embed_positions
    found: torch.Tensor
    if hasattr(module, "create_position_ids_from_input_ids"):
        found = tokens.pack(module(input_ids, given if input_ids is None else None))
    else:
        places = tokens.pack(torch.arange(given.shape[1], device=given.device)[None])
        found = module(places.shape, position_ids=places)
    return found


def source_of(
    hidden: torch.Tensor | None, attention_mask: torch.Tensor | None, rows: int
) -> Source:
    """The packed input of a decoder's cross attentions. Raises InvalidInput for hidden states whose
    number of rows or length does not match."""
    if hidden is None or hidden.ndim != 3 or hidden.shape[0] != rows:
        raise InvalidInput(
            "encoder_hidden_states",
            "none" if hidden is None else f"shape {list(hidden.shape)}",
            f"[{rows}, source length, hidden], a source for each target",
            "pass the output of the encoder",
        )
    shape = (hidden.shape[0], hidden.shape[1])
    tokens = packed(shape, attention_mask, None, {}, hidden.device)
    return Source(tokens.pack(hidden), tokens)

"""The inputs of a transformers language-model head, and the labels of its loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fusewire.errors import InvalidInput, Unsupported
from fusewire.train.packed import SOURCE, TARGET
from fusewire.train.targets import NO_LABEL, target_mask

# Classes whose logits are a projection of the base model's hidden states and nothing else.
_CAUSAL = {
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
}
_PAIRS = {
    "BartForConditionalGeneration",
    "BlenderbotForConditionalGeneration",
    "M2M100ForConditionalGeneration",
    "MBartForConditionalGeneration",
    "MarianMTModel",
    "PLBartForConditionalGeneration",
    "PegasusForConditionalGeneration",
}


# Classes that transform or scale hidden states before they project them.
_MASKED = {
    f"{name}ForMaskedLM"
    for name in ("Bert", "Camembert", "DistilBert", "Electra", "Roberta", "XLMRoberta")
}
_SCALED = {f"{name}ForConditionalGeneration" for name in ("T5", "MT5", "UMT5")}


class HeadInputs(NamedTuple):
    """The input [batch, length, features] of the head's projection, its weight [classes, features],
    the labels [batch, length] of the places that predict them, its bias [classes], and the side
    that they are of."""

    hidden: Tensor
    weight: Tensor
    labels: Tensor
    bias: Tensor | None
    side: str


def head_inputs(model: nn.Module, batch: Mapping[str, Tensor], ignore_index: int) -> HeadInputs:
    """Runs the model up to its projection over a batch with `labels`. Raises Unsupported for a
    class whose logits are computed otherwise, InvalidInput for a batch without labels."""
    names = {base.__name__ for base in type(model).__mro__}
    supported = _CAUSAL | _PAIRS | _MASKED | _SCALED
    if not names & supported:
        raise Unsupported(
            type(model).__name__,
            "it",
            "a model with a language-model head alone: " + ", ".join(sorted(supported)),
            "call CrossEntropy with its hidden states and its head",
        )
    inputs: dict[str, Any] = dict(batch)
    labels = inputs.pop("labels", None)
    if labels is None or labels.ndim != 2:
        got = "none" if labels is None else f"shape {list(labels.shape)}"
        raise InvalidInput("labels", got, "[batch, length]", "add the tokens to be predicted")
    found: Any = model
    side = TARGET if names & (_PAIRS | _SCALED) else SOURCE
    if side == TARGET:
        targets = inputs.get("decoder_input_ids")
        if targets is None and inputs.get("decoder_inputs_embeds") is None:
            inputs["decoder_input_ids"] = _starts(found, labels)
            if inputs.get("decoder_attention_mask") is None:
                inputs["decoder_attention_mask"] = target_mask(labels, None)
    elif names & _CAUSAL:
        labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=ignore_index)
    head = found.get_output_embeddings()
    if names & (_MASKED | _SCALED):
        with _passing(head):
            hidden = found(**inputs, return_dict=True).logits
        return HeadInputs(hidden, head.weight, labels, head.bias, side)
    bias = head.bias if head.bias is not None else getattr(model, "final_logits_bias", None)
    hidden = found.base_model(**inputs).last_hidden_state
    bias = None if bias is None else bias.reshape(-1)
    return HeadInputs(hidden, head.weight, labels, bias, side)


@contextmanager
def _passing(projection: nn.Module) -> Iterator[None]:
    """In the context the projection returns its input."""
    projection.forward = lambda hidden: hidden
    try:
        yield
    finally:
        del projection.forward


def _starts(model: Any, labels: Tensor) -> Tensor:
    """The input of the decoder: labels [batch, length], shifted by one place."""
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        starts: Tensor = model.prepare_decoder_input_ids_from_labels(labels)
        return starts
    starts = labels.roll(1, dims=1)
    starts[:, 0] = model.config.decoder_start_token_id
    return starts.masked_fill(starts == NO_LABEL, model.config.pad_token_id)

"""Where the targets of encoder-decoder models end, and the number of labels that a loss is the mean
of."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fusewire.errors import InvalidInput

NO_LABEL = -100  # in the criteria of transformers and torch

# Suffixes of classes whose loss compares a place's prediction with the label of the next place.
_SHIFTS = ("LMHeadModel", "ForCausalLM")

# A class whose loss is the mean over all tokens that the mask has, whatever their labels.
_OF_ALL_TOKENS = "ElectraForPreTraining"


def target_mask(
    labels: torch.Tensor | None, decoder_input_ids: torch.Tensor | None
) -> torch.Tensor | None:
    """The mask int64 [batch, length] of `labels`: 0 after the last label of a row, but at least one
    token per row. None if labels are not per token. Raises InvalidInput for labels of another shape
    than `decoder_input_ids`."""
    if labels is None:
        return None
    if decoder_input_ids is not None and labels.shape != decoder_input_ids.shape:
        raise InvalidInput(
            "labels",
            f"shape {list(labels.shape)}",
            f"{list(decoder_input_ids.shape)} as decoder_input_ids",
            "pad both to one length, or leave decoder_input_ids out",
        )
    if labels.ndim != 2 or labels.shape[1] < 1:
        return None
    mask = (labels != NO_LABEL).flip(1).cumsum(1).flip(1) > 0
    mask[:, 0] = True
    return mask.long()


def predicts(there: torch.Tensor, labels: torch.Tensor | None) -> bool:
    """Whether labels are given for the places [batch, length] of a side, and all of them, other
    than -100, are predicted by tokens: those that are `there`, bool on the CPU.

    A causal model predicts a label at the place before it: that of the first token behind padding
    on the left is predicted at padding. Synchronises for labels on a GPU where there is padding.
    """
    if labels is None or labels.is_floating_point() or labels.shape != there.shape:
        return False
    if bool(there.all()):
        return True
    at_padding = ~there
    at_padding[:, 1:] |= ~there[:, :-1]
    return not bool((at_padding & (labels.cpu() != NO_LABEL)).any())


def labels_of(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> int:
    """The number of labels that the loss of transformers is the mean of for this batch.
    Synchronises for labels on a GPU. Raises InvalidInput where there are none, or two kinds."""
    labels = batch.get("labels")
    if labels is None:
        raise InvalidInput(
            "labels",
            "none",
            "some, by whose number the losses of several batches are weighed",
            "pass Step `items`, which says of how many a batch's loss is the mean",
        )
    if "next_sentence_label" in batch:
        raise InvalidInput(
            "next_sentence_label",
            "some beside labels in one of several batches",
            "labels of one kind, as each kind's loss is a mean of its own",
            "pass all rows as one batch, or Step `items`",
        )
    # Not a wrapper, such as that of torch.compile.
    own = next((each for each in model.modules() if "config" in each.__dict__), model)
    names = [base.__name__ for base in type(own).__mro__]
    mask = batch.get("attention_mask")
    if _OF_ALL_TOKENS in names and mask is not None:
        return int(mask.sum())
    shifts = any(name.endswith(_SHIFTS) for name in names)
    if labels.ndim == 2 and shifts:
        labels = labels[:, 1:]
    return int((labels != NO_LABEL).sum())

"""Arguments that the forward of a replaced model accepts, and those that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fusewire.errors import InvalidInput, Unsupported
from fusewire.train.packed import FLATTENING

# Of the loss, which heads compute: generate() hands the labels of a batch to encoders.
_NOT_OURS = ("labels", "num_items_in_batch")

# What generate() hands on of earlier tokens, in transformers of any version.
_EARLIER_TOKENS = ("past_key_values", "cache")


def refuse(model: Any, **arguments: Any) -> None:
    """Raises Unsupported with the name of an argument whose value is neither None nor False:
    nothing that was asked for is ignored silently."""
    given = {
        name: value
        for name, value in arguments.items()
        if name not in FLATTENING and name not in _NOT_OURS
    }
    for name in ("output_attentions", "output_hidden_states"):
        given.setdefault(name, getattr(model.config, name, False))
    for name, value in given.items():
        if value is not None and value is not False:
            raise Unsupported(
                f"{type(model).__name__}.forward: {name}",
                str(value) if isinstance(value, bool | int | str) else f"a {type(value).__name__}",
                "none, as a model that fusewire.train.replace changed has it",
                "pass use_cache=False to generate()"
                if name in _EARLIER_TOKENS
                else "call it on a model of transformers that was not replaced",
            )


def refuse_flattened(model: Any, arguments: Mapping[str, Any]) -> None:
    """Raises Unsupported for the keywords of DataCollatorWithFlattening."""
    for name in FLATTENING:
        if arguments.get(name) is not None:
            raise Unsupported(
                f"{type(model).__name__}.forward: {name}",
                "a flattened batch",
                "rows of one source or target each",
                "pass a padded batch with its attention_mask, which is packed",
            )


def refuse_autocast(what: str) -> None:
    """Raises Unsupported under autocast on CPUs, where `what` computes in fp32."""
    if torch.is_autocast_enabled("cpu"):
        raise Unsupported(
            f"{what}.forward",
            "autocast",
            "fp32",
            "leave out torch.autocast, and bf16 and fp16 in the arguments of a Trainer",
        )


def refuse_traced(what: str) -> None:
    """Raises Unsupported while torch traces or exports: it cannot record our kernels."""
    if torch.jit.is_tracing() or torch.compiler.is_exporting():
        raise Unsupported(
            f"{what}.forward",
            "a call that torch traces or exports",
            "an eager call",
            "save_pretrained, load the folder with transformers and export that",
        )


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, which torch.compile is to call as it is: it cannot trace kernels, and
    compiles what is around them. With `fullgraph=True` it refuses, and says the reason."""
    reason = "it runs kernels of fusewire, which are not compiled; leave out fullgraph=True"
    try:
        return torch.compiler.disable(function, reason=reason)
    except TypeError:  # torch before 2.7 takes no reason
        return torch.compiler.disable(function)


def refuse_create_graph() -> None:
    """To be called in the backward of an autograd Function: raises Unsupported where gradients of
    gradients are wanted."""
    if torch.is_grad_enabled():
        raise Unsupported(
            "backward: create_graph",
            "True",
            "False, for these gradients have no gradients of their own",
            "leave it out, or train with transformers itself",
        )


def ids_or_embeddings(
    input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None
) -> torch.Tensor:
    """Whichever of the two is given: [batch, length], or [batch, length, hidden]. Raises
    InvalidInput for both, for none, and for other shapes."""
    given = input_ids if inputs_embeds is None else inputs_embeds
    if given is None or (input_ids is not None and inputs_embeds is not None):
        raise InvalidInput(
            "input_ids, inputs_embeds", "both or neither", "one of them", "leave one out"
        )
    if given.ndim != (2 if inputs_embeds is None else 3):
        raise InvalidInput(
            "input_ids", f"shape {list(given.shape)}", "[batch, length]", "reshape it"
        )
    return given

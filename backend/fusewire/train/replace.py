"""Trains a Hugging Face model on fusewire's kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fusewire.errors import ConfigurationError, Unsupported
from fusewire.models.blueprint import Stack
from fusewire.models.stored_weights import tensors_of
from fusewire.train.embedding import EmbeddingForward, is_plain
from fusewire.train.flat import FlatParameters
from fusewire.train.fsdp import refuse_fsdp
from fusewire.train.layer_modules import LayerModules
from fusewire.train.layers import RECOMPUTE, TrainedLayers
from fusewire.train.parts import stacked_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound="PreTrainedModel")


def replace(hf_model: Model, *, recompute: str = "none", segments: int = 1) -> Model:
    """Changes a transformers model in place so that its layers train and evaluate on fusewire's
    kernels. Returns the same object, with the same class, names and config, which saves as before.

        model = fusewire.train.replace(AutoModelForSequenceClassification.from_pretrained(...))

    Its parameters, fp32 or bf16, become views of one buffer (`FlatParameters`); their gradients are
    fp32. Padded batches are packed before the layers and padded again with zeros after them; a
    batch of DataCollatorWithFlattening is taken as it is. In encoder-decoder models sources and
    targets are packed; where a target has labels and no mask, everything after its last label is
    padding. Embeddings and heads stay those of transformers (lookups write their gradients to the
    buffer). So a loss over all places of a row (question answering) includes the zeros, and so does
    anything that reads a padded place: use right padding for a head that reads the first token
    (BERT's classifiers), and give the first token after left padding the label -100. In a row with
    masked tokens between others, a sliding window counts only the tokens that remain. Dropout uses
    torch's generator and the probabilities of the config, in layers that are in train().

    The layers' own modules hold the parameters and are not called, so what kernels do not do is
    refused, here and at each forward: modules that were wrapped, exchanged, added or removed (as
    LoRA does), hooks and forwards of their own, a Dropout whose `p` changed, and eval() of some
    layers while others train. Hooks of the whole model, embeddings and heads are called.

    `recompute`: what backward computes again instead of keeping it: none, norm (outputs of norms),
    activation (those of activations too) or layer (everything except the input of each layer;
    `gradient_checkpointing_enable` sets it too). `segments`: the number of autograd nodes that the
    layers become; under DDP the gradients of one are sent while the next is computed. Without
    dropout, which draws numbers by segment, gradients are bit-equal with any number of them.

    Raises Unsupported for a model with none of the architectures in `families.FAMILIES`, or with
    parts that cannot be trained or differ from its config; ConfigurationError for parameters that
    are not all fp32 or all bf16, on the CPU or on one GPU.
    """
    # They need transformers, whose model this is.
    from fusewire.train.families import FAMILIES, LABELLED, Forward
    from fusewire.train.seq2seq import mask_targets

    if recompute not in RECOMPUTE:
        raise ConfigurationError(
            f"recompute: got {recompute!r}, wanted one of {', '.join(RECOMPUTE)}"
        )
    for each in hf_model.modules():
        refuse_fsdp(each)
    found = [
        (name, module, FAMILIES[type(module).__name__])
        for name, module in hf_model.named_modules()
        if type(module).__name__ in FAMILIES and type(module).__module__.startswith("transformers.")
    ]
    if not found:
        raise Unsupported(
            "replace",
            type(hf_model).__name__,
            f"a model of transformers with one of {', '.join(FAMILIES)} in it",
            "train it with transformers itself",
        )
    stacks = [
        (f"{name}." if name else "", module, family, family.stack(module.config))
        for name, module, family in found
    ]
    modules = [
        LayerModules(module, _names(stack), family.probabilities(module.config))
        for _, module, family, stack in stacks
    ]
    flat = FlatParameters(
        hf_model,
        [
            [hf_model.get_parameter(name) for name in names]
            for prefix, _, _, stack in stacks
            for names in stacked_names(stack.layers, prefix)
        ],
    )
    for (prefix, module, family, stack), layer_modules in zip(stacks, modules, strict=True):
        dropouts = family.dropouts(module.config)
        trained = TrainedLayers(flat, prefix, stack, dropouts, segments, layer_modules)
        trained.recompute = recompute
        module.fusewire = trained
        module.forward = Forward(module)
    in_layers = {module for layer_modules in modules for module in layer_modules}
    others: list[Any] = [module for module in hf_model.modules() if module not in in_layers]
    for module in others:
        if is_plain(module):
            module.forward = EmbeddingForward(module)
        if type(module).__name__ in LABELLED:
            module.register_forward_pre_hook(mask_targets, with_kwargs=True)
    return hf_model


def _names(stack: Stack) -> list[str]:
    """The names of the parameters of the layers and the final norm, in the base model."""
    norm = () if stack.final_norm is None else (stack.final_norm,)
    return list(tensors_of(*stack.layers, *norm))

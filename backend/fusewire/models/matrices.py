"""The names of the matrices that `quantize` applies to and `quantize_skip` lists, without reading
weights: those that `Placement.formats` has once the model is loaded."""

from __future__ import annotations

from collections.abc import Iterator

from fusewire.models.blueprint import (
    Blueprint,
    CrossAttention,
    Embeddings,
    FeedForward,
    Layer,
    Stack,
)
from fusewire.weights import Checkpoint


def matrices_of(blueprint: Blueprint, head: str | None, checkpoint: Checkpoint) -> dict[str, None]:
    """Returns names of matrices, in order: token embeddings, matrices of layers, and heads with one
    output per token of the vocabulary."""
    stacks = [each for each in (blueprint.stack, blueprint.encoder) if each is not None]
    names, shared = [], set()
    for embeddings in (stack.embeddings for stack in stacks):
        if isinstance(embeddings, Embeddings):
            origin = checkpoint.origin(embeddings.word.name)
            if origin not in shared:  # tied tables are one matrix, with the name of the first
                names.append(embeddings.word.name.removesuffix(".weight"))
            if embeddings.word_as_stored:
                shared.add(origin)
    names += [name for stack in stacks for name in _of_layers(stack)]
    chain = () if head is None else blueprint.task_heads[head].chain
    for dense in chain:
        scores_all = head == "generate" and dense is chain[-1]
        if scores_all or checkpoint.origin(f"{dense.names[0]}.weight") in shared:
            names.append(dense.names[0])
    return dict.fromkeys(names)


def _of_layers(stack: Stack) -> Iterator[str]:
    for layer in stack.layers:
        yield from _of_layer(layer)
    for attention in stack.cross_attentions[:1]:  # those of all layers are one matrix
        yield attention.kv.names[0]


def _of_layer(layer: Layer) -> Iterator[str]:
    for block in layer.blocks:
        part = block.sublayer
        if isinstance(part, FeedForward):
            yield part.intermediate.names[0]
        else:
            yield (part.q if isinstance(part, CrossAttention) else part.qkv).names[0]
        yield part.output.names[0]

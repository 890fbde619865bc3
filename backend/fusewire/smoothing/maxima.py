"""Computes the largest magnitude of each channel, over texts that a decoder reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.calibration_texts import Ids
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Attention, Blueprint, Embeddings, FeedForward
from fusewire.models.embeddings import BuiltEmbeddings
from fusewire.models.inputs import Inputs, packed_layout
from fusewire.models.layer_builder import LayerBuilder
from fusewire.models.stored_weights import Dense, Norm
from fusewire.placement import Placement
from fusewire.smoothing.channels import first_matrix
from fusewire.weights import Checkpoint

Maxima = dict[Norm | Dense, NDArray[np.float32]]


def channel_maxima(
    blueprint: Blueprint, checkpoint: Checkpoint, texts: Sequence[Ids], place: Placement
) -> Maxima:
    """Returns the largest magnitude of each channel. The key of a norm before a sublayer has those
    of its output, [hidden]. The key of a sublayer's first matrix has those of the input of its last
    matrix, [inputs]; for attention those of the values, of which that input is a weighted mean,
    [kv_width]. Builds one layer at a time. `place`: on the CPU, in fp32."""
    stack, weights = blueprint.stack, Weights(checkpoint, place)
    assert isinstance(stack.embeddings, Embeddings)
    lengths = [ids.size for ids in texts]
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    arrays = {
        "input_ids": np.concatenate(texts),
        "positions": np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        "cu_seqlens": offsets,
    }
    inputs = Inputs.upload(packed_layout(int(offsets[-1]), len(texts)), arrays, place)
    batch = inputs.sequences(offsets)
    x = place.empty(int(offsets[-1]), stack.hidden_size)
    BuiltEmbeddings(stack.embeddings, weights, place).forward(x, inputs)
    builder = LayerBuilder(stack.max_length, weights, place)
    workspace = kernels.Workspace(kernels.default_allocator(place.device))
    maxima: Maxima = {}
    for layer in stack.layers:
        together = [layer.blocks] if layer.parallel else [(block,) for block in layer.blocks]
        for blocks in together:
            for block in blocks:
                assert isinstance(block.sublayer, Attention | FeedForward)
                norm = weights.built_norm(block.input_norm)
                assert block.input_norm is not None  # `channels_of` has checked it
                assert norm is not None
                normed = place.empty(*x.shape)
                norm.apply(normed, x, place.stream)
                maxima[block.input_norm] = _largest(place.numpy(normed))
                inner = _inner(block.sublayer, normed, weights, place)
                maxima[first_matrix(block.sublayer)] = _largest(inner)
            built = kernels.Layer([builder.block(each) for each in blocks], parallel=layer.parallel)
            kernels.Stack([built]).forward(x, batch, workspace, inputs["positions"], place.stream)
        checkpoint.release()
    return maxima


def _inner(
    sublayer: Attention | FeedForward, normed: kernels.Tensor, weights: Weights, place: Placement
) -> NDArray[np.float32]:
    """Returns the values [tokens, kv_width] of an attention, or the input of a feed-forward's
    second matrix."""
    first, rows = first_matrix(sublayer), normed.shape[0]
    gated = isinstance(sublayer, FeedForward) and sublayer.gated
    given = place.empty(rows, first.outputs)
    activation = "none"
    if isinstance(sublayer, FeedForward) and not gated:
        activation = sublayer.activation
    kernels.linear(given, normed, weights.linear(first), activation, place.stream)
    if isinstance(sublayer, Attention):
        return place.numpy(given)[:, -sublayer.kv_width :]
    if gated:
        inner = place.empty(rows, sublayer.output.inputs)
        kernels.gate(inner, given, sublayer.activation, place.stream)
        given = inner
    return place.numpy(given)


def _largest(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    largest: NDArray[np.float32] = np.abs(rows).max(axis=0)
    return largest

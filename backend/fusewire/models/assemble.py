"""From a Blueprint and a checkpoint to the kernel library's tensors, matrices and layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.blueprint import Blueprint, Dense, Layer, Norm, Table
from fusewire.models.decoder_blueprint import DecoderBlueprint, DecoderLayer, TokenEmbeddings
from fusewire.models.positions import relative_buckets
from fusewire.models.rope import Rope, unscaled
from fusewire.placement import Placement
from fusewire.weights import Checkpoint


class Weights:
    """A checkpoint's tensors in the shapes the kernels want, in their place."""

    def __init__(self, checkpoint: Checkpoint, place: Placement) -> None:
        self._checkpoint = checkpoint
        self._place = place
        self._tables: dict[str, kernels.Tensor] = {}  # those that are as they are stored

    def table(self, table: Table, projection: Dense | None = None) -> kernels.Tensor:
        """`projection` is applied to each row, once and for all."""
        if projection is None:
            rows = self._stored(table.name)[table.skipped :]
        else:
            rows = self._checkpoint.take(table.name)[table.skipped :]
            rows = rows @ self._stacked(projection, "weight", "float32").T
        tensor = self._place.floats(rows, table.name)
        if projection is None and not table.skipped:
            self._tables[table.name] = tensor
        return tensor

    def norm(self, norm: Norm) -> tuple[kernels.Tensor, kernels.Tensor | None]:
        bias = self._vector(f"{norm.name}.bias") if norm.bias else None
        name = f"{norm.name}.weight"
        if norm.one_plus:
            weight = self._checkpoint.take(name) + np.float32(1)
        else:
            weight = self._stored(name)
        return self._place.floats(weight, name), bias

    def linear(self, dense: Dense) -> kernels.Linear:
        """Prepacked; several names become one matrix, so that one product serves them all. A head
        whose weight is a table (tied embeddings) shares its memory where it can."""
        tied = self._tables.get(f"{dense.names[0]}.weight")
        if tied is not None and not dense.bias:
            return self._place.linear_of(tied)
        dtype = self._place.dtype
        weight = self._stacked(dense, "weight", dtype)
        bias = self._stacked(dense, "bias", dtype) if dense.bias else None
        return self._place.linear(weight, bias, dense.names[0])

    def _stored(self, name: str) -> NDArray[Any]:
        """As it is where that is the placement's precision, else fp32: nothing is rounded twice,
        or read more often than it has to be."""
        return self._checkpoint.take(name, self._place.dtype)

    def _stacked(self, dense: Dense, kind: str, dtype: str) -> NDArray[Any]:
        parts = [self._checkpoint.take(f"{name}.{kind}", dtype) for name in dense.names]
        if len({part.dtype for part in parts}) > 1:
            parts = [self._checkpoint.take(f"{name}.{kind}") for name in dense.names]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if dense.transposed and kind == "weight":
            whole = whole.T
        if dense.by_head:
            split = whole.reshape(dense.by_head, 3, -1, *whole.shape[1:])
            whole = split.swapaxes(0, 1).reshape(whole.shape)
        return whole

    def _vector(self, name: str) -> kernels.Tensor:
        return self._place.floats(self._stored(name), name)


def build_layer(blueprint: Blueprint, layer: Layer, weights: Weights) -> kernels.TransformerLayer:
    spec = kernels.LayerSpec(
        hidden=blueprint.hidden_size,
        intermediate=layer.output.inputs,
        heads=blueprint.heads,
        activation=blueprint.activation,
        gated=blueprint.gated,
        norm="layer_norm",
        norm_eps=blueprint.norm_eps,
        pre_norm=blueprint.pre_norm,
        window=layer.window,
    )
    parts: dict[str, Any] = {
        "qkv": weights.linear(layer.qkv),
        "attention_output": weights.linear(layer.attention_output),
        "intermediate": weights.linear(layer.intermediate),
        "output": weights.linear(layer.output),
        "output_norm": weights.norm(layer.output_norm),
    }
    if layer.attention_norm is not None:
        parts["attention_norm"] = weights.norm(layer.attention_norm)
    return kernels.TransformerLayer(spec, parts)


def build_decoder_layer(
    blueprint: DecoderBlueprint, layer: DecoderLayer, weights: Weights
) -> kernels.TransformerLayer:
    spec = kernels.LayerSpec(
        hidden=blueprint.hidden_size,
        intermediate=layer.output.inputs,
        heads=blueprint.heads,
        kv_heads=blueprint.kv_heads,
        head_dim=blueprint.head_dim,
        activation=blueprint.activation,
        gated=blueprint.gated,
        norm=blueprint.norm,
        norm_eps=blueprint.norm_eps,
        pre_norm=blueprint.pre_norm,
        parallel=blueprint.parallel,
        window=layer.window,
        scale=layer.scale,
        soft_cap=blueprint.soft_cap,
    )
    products = ("qkv", "attention_output", "intermediate", "output")
    parts: dict[str, Any] = {name: weights.linear(getattr(layer, name)) for name in products}
    for name in (
        "attention_norm",
        "output_norm",
        "q_norm",
        "k_norm",
        "attention_post_norm",
        "output_post_norm",
    ):
        norm = getattr(layer, name)
        if norm is not None:
            parts[name] = weights.norm(norm)
    return kernels.TransformerLayer(spec, parts)


def token_tables(
    embeddings: TokenEmbeddings, weights: Weights
) -> tuple[kernels.Tensor, kernels.Tensor | None]:
    """Words [vocabulary, hidden] and positions [max_length, hidden]."""
    position = embeddings.position
    word = weights.table(embeddings.word, embeddings.projection)
    return word, None if position is None else weights.table(position)


def rope_table(
    rope: Rope | None, max_length: int, place: Placement
) -> tuple[kernels.Tensor, kernels.Tensor] | None:
    if rope is None:
        return None
    cos, sin = rope.table(max_length)
    return place.exact(cos, np.float32, "weights"), place.exact(sin, np.float32, "weights")


def rotary(
    blueprint: Blueprint, theta: float | None, place: Placement
) -> tuple[kernels.Tensor, kernels.Tensor] | None:
    head_dim = blueprint.hidden_size // blueprint.heads
    rope = None if theta is None else Rope.of(unscaled(theta, head_dim))
    return rope_table(rope, blueprint.max_length, place)


def relative_bias(
    blueprint: Blueprint, checkpoint: Checkpoint, place: Placement
) -> kernels.Tensor | None:
    if blueprint.relative_bias is None:
        return None
    table = checkpoint.take(blueprint.relative_bias.name)
    buckets = relative_buckets(blueprint.max_length, table.shape[0])
    return place.exact(table[buckets].T, np.float32, "weights")

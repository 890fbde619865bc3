"""From a Blueprint and a checkpoint to the kernel library's tensors, matrices and layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.blueprint import Blueprint, Dense, Layer, Norm, Table
from fusewire.models.positions import relative_buckets, rotary_table
from fusewire.weights import Checkpoint


def as_tensor(array: NDArray[Any], dtype: Any) -> kernels.Tensor:
    return kernels.Tensor.from_numpy(np.ascontiguousarray(array, dtype))


class Weights:
    """A checkpoint's tensors in the shapes the kernels want."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def table(self, table: Table) -> kernels.Tensor:
        return as_tensor(self._checkpoint.take(table.name), np.float32)

    def norm(self, norm: Norm) -> tuple[kernels.Tensor, kernels.Tensor | None]:
        bias = self._vector(f"{norm.name}.bias") if norm.bias else None
        return self._vector(f"{norm.name}.weight"), bias

    def linear(self, dense: Dense) -> kernels.Linear:
        """Prepacked; several names become one matrix, so that one product serves them all."""
        weight = self._stacked(dense, "weight")
        bias = self._stacked(dense, "bias") if dense.bias else None
        return kernels.Linear(weight, bias)

    def _stacked(self, dense: Dense, kind: str) -> kernels.Tensor:
        parts = [self._checkpoint.take(f"{name}.{kind}") for name in dense.names]
        return as_tensor(parts[0] if len(parts) == 1 else np.concatenate(parts), np.float32)

    def _vector(self, name: str) -> kernels.Tensor:
        return as_tensor(self._checkpoint.take(name), np.float32)


def build_layer(blueprint: Blueprint, layer: Layer, weights: Weights) -> kernels.EncoderLayer:
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
    return kernels.EncoderLayer(spec, parts)


def rotary(
    blueprint: Blueprint, theta: float | None
) -> tuple[kernels.Tensor, kernels.Tensor] | None:
    if theta is None:
        return None
    head_dim = blueprint.hidden_size // blueprint.heads
    cos, sin = rotary_table(blueprint.max_length, head_dim, theta)
    return as_tensor(cos, np.float32), as_tensor(sin, np.float32)


def relative_bias(blueprint: Blueprint, checkpoint: Checkpoint) -> kernels.Tensor | None:
    if blueprint.relative_bias is None:
        return None
    table = checkpoint.take(blueprint.relative_bias.name)
    buckets = relative_buckets(blueprint.max_length, table.shape[0])
    return as_tensor(table[buckets].T, np.float32)

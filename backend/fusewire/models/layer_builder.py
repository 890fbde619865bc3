"""Builds the layers of a stack with their weights, in the form that kernels run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fusewire import kernels
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import (
    Attention,
    Block,
    CrossAttention,
    FeedForward,
    Layer,
    PositionBias,
)
from fusewire.models.positions import relative_buckets
from fusewire.models.rope import Rope
from fusewire.placement import Placement


class SourceQueries(NamedTuple):
    """The part of a layer before its cross-attention, and the norm and query projection of that
    attention. They share the layer's weights."""

    before: kernels.Stack
    norm: kernels.Norm | None
    q: kernels.Linear


class LayerBuilder:
    """Builds layers, which share their RoPE tables and position biases."""

    def __init__(self, max_length: int, weights: Weights, place: Placement) -> None:
        self._max_length = max_length
        self._weights = weights
        self._place = place
        self._angles: dict[Rope, tuple[kernels.Tensor, kernels.Tensor]] = {}
        self._biases: dict[PositionBias, kernels.Tensor] = {}
        self._blocks: dict[Layer, list[kernels.Block]] = {}
        self._source_queries: dict[CrossAttention, kernels.Linear] = {}
        self._input_norms: dict[Block, kernels.Norm | None] = {}

    def layer(self, layer: Layer) -> kernels.Layer:
        blocks = self._blocks[layer] = [self.block(block) for block in layer.blocks]
        return kernels.Layer(blocks, parallel=layer.parallel)

    def queries(self, layer: Layer) -> SourceQueries:
        """Returns the cross-attention queries of a built layer."""
        place = [isinstance(block.sublayer, CrossAttention) for block in layer.blocks].index(True)
        block = layer.blocks[place]
        assert isinstance(block.sublayer, CrossAttention)
        before = kernels.Stack([kernels.Layer(self._blocks[layer][:place])], None)
        return SourceQueries(before, self._input_norms[block], self._source_queries[block.sublayer])

    def block(self, block: Block) -> kernels.Block:
        norm = self._input_norms[block] = self._weights.built_norm(block.input_norm)
        return kernels.Block(
            self._sublayer(block.sublayer),
            input_norm=norm,
            output_norm=self._weights.built_norm(block.output_norm),
            residual_norm=self._weights.built_norm(block.residual_norm),
        )

    def _sublayer(
        self, part: Attention | CrossAttention | FeedForward
    ) -> kernels.Attention | kernels.CrossAttention | kernels.FeedForward:
        weights = self._weights
        if isinstance(part, CrossAttention):
            q = self._source_queries[part] = weights.layer_linear(part.q)
            return kernels.CrossAttention(
                q=q,
                output=weights.layer_linear(part.output),
                heads=part.heads,
                scale=part.scale,
            )
        if isinstance(part, FeedForward):
            return kernels.FeedForward(
                intermediate=weights.layer_linear(part.intermediate),
                output=weights.layer_linear(part.output),
                activation=part.activation,
                gated=part.gated,
            )
        return kernels.Attention(
            qkv=weights.layer_linear(part.qkv),
            output=weights.layer_linear(part.output),
            heads=part.heads,
            kv_heads=part.kv_heads,
            left=part.left,
            right=part.right,
            scale=part.scale,
            soft_cap=part.soft_cap,
            q_norm=weights.built_norm(part.q_norm),
            k_norm=weights.built_norm(part.k_norm),
            rope=None if part.rope is None else self._rope(part.rope),
            position_bias=None if part.position_bias is None else self._bias(part.position_bias),
            **weights.cache_scales(part),
        )

    def _rope(self, rope: Rope) -> tuple[kernels.Tensor, kernels.Tensor]:
        if rope not in self._angles:
            cos, sin = rope.table(self._max_length)
            exact = self._place.exact
            self._angles[rope] = (
                exact(cos, np.float32, "weights"),
                exact(sin, np.float32, "weights"),
            )
        return self._angles[rope]

    def _bias(self, bias: PositionBias) -> kernels.Tensor:
        if bias not in self._biases:
            # The kernels clamp larger distances to the ends of the table.
            length = min(self._max_length, bias.max_distance + 1)
            buckets = relative_buckets(
                length, bias.table.rows, bias.max_distance, causal=bias.causal
            )
            by_distance = self._weights.fp32(bias.table.name)[buckets].T
            self._biases[bias] = self._place.exact(by_distance, np.float32, "weights")
        return self._biases[bias]

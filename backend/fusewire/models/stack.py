"""A Stack with its weights: the input block, the layers and the norm at their end, of encoders and
of decoders.

Nothing here knows an architecture by name. Hidden states live in one [tokens, hidden] matrix that
each layer updates in place; temporaries live in a workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import (
    Attention,
    Block,
    CrossAttention,
    Embeddings,
    FeedForward,
    Frames,
    Layer,
    Patches,
    PositionBias,
    Sinusoids,
    Stack,
)
from fusewire.models.buckets import MOST_TOKENS
from fusewire.models.frames import BuiltFrames
from fusewire.models.inputs import NamedTensors
from fusewire.models.patches import BuiltPatches
from fusewire.models.positions import relative_buckets, sinusoids, tensor2tensor_sinusoids
from fusewire.models.rope import Rope
from fusewire.models.step_batch import PagedStep
from fusewire.placement import Placement


class BuiltStack:
    """Its forwards take memory from the workspace alone: they can be recorded."""

    def __init__(
        self, stack: Stack, weights: Weights, place: Placement, workspace: kernels.Workspace
    ) -> None:
        self._stream = place.stream
        self._workspace = workspace
        self.input_block: BuiltEmbeddings | BuiltPatches | BuiltFrames
        if isinstance(stack.embeddings, Patches):
            self.input_block = BuiltPatches(stack.embeddings, weights, place)
        elif isinstance(stack.embeddings, Frames):
            self.input_block = BuiltFrames(stack.embeddings, weights, place)
        else:
            self.input_block = BuiltEmbeddings(stack.embeddings, weights, place)
        builder = LayerBuilder(stack.max_length, weights, place)
        built = {layer: builder.layer(layer) for layer in dict.fromkeys(stack.layers)}
        self._built = [built[layer] for layer in stack.layers]
        self._layers = kernels.Stack(self._built, weights.built_norm(stack.final_norm))
        reads_sources = bool(stack.cross_attentions)
        self._queries = [builder.queries(layer) for layer in stack.layers if reads_sources]

    def forward(
        self, x: kernels.Tensor, inputs: NamedTensors, batch: kernels.SequenceBatch
    ) -> None:
        """Fills x [tokens, hidden] for whole sequences, whose tokens see all of their own."""
        self.input_block.forward(x, inputs)
        self._layers.forward(x, batch, self._workspace, inputs["positions"], self._stream)

    def forward_outputs(
        self,
        out: kernels.Tensor,
        tokens: kernels.Tensor,
        outputs: kernels.SequenceBatch,
        x: kernels.Tensor,
        inputs: NamedTensors,
        batch: kernels.SequenceBatch,
    ) -> None:
        """As `forward`, of some tokens alone: fills out [n, hidden] for tokens int64 [n], whose
        offsets are those of `outputs`, and x with nothing of use. The last layer computes no
        others."""
        self.input_block.forward(x, inputs)
        self._layers.forward_outputs(
            out, tokens, outputs, x, batch, self._workspace, inputs["positions"], self._stream
        )

    def forward_cached(
        self,
        x: kernels.Tensor,
        inputs: NamedTensors,
        step: PagedStep,
        planes: kernels.Tensor,
    ) -> None:
        """Fills x [tokens, hidden] for new tokens, whose keys and values join the planes, where
        those of their sources are."""
        self.input_block.forward(x, inputs)
        positions = inputs["positions"]
        self._layers.forward_cached(
            x, step.batch, planes, self._workspace, positions, self._stream, step.sources
        )

    def source_queries(
        self,
        x: kernels.Tensor,
        inputs: NamedTensors,
        step: PagedStep,
        planes: kernels.Tensor,
        layers: Sequence[int],
    ) -> list[kernels.Tensor]:
        """As `forward_cached`, up to the attention to sources of the last of these layers, which
        are in order: what those of each ask sources with, [tokens, heads * head_dim]. Fills x with
        nothing of use. Cannot be recorded."""
        self.input_block.forward(x, inputs)
        found, first = [], 0
        for layer in layers:
            if layer > first:
                between = kernels.Stack(self._built[first:layer], None)
                self._run_cached(between, x, inputs, step, _planes_from(first, planes))
                first = layer
            before, norm, q = self._queries[layer]
            asking = kernels.empty(list(x.shape), x.dtype, stream=self._stream)
            kernels.write(asking, x, self._stream)
            self._run_cached(before, asking, inputs, step, _planes_from(layer, planes))
            if norm is not None:
                norm.apply(asking, asking, self._stream)
            queries = kernels.empty([x.shape[0], q.out_features], x.dtype, stream=self._stream)
            kernels.linear(queries, asking, q, "none", self._stream)
            found.append(queries)
        return found

    def _run_cached(
        self,
        layers: kernels.Stack,
        x: kernels.Tensor,
        inputs: NamedTensors,
        step: PagedStep,
        planes: kernels.Tensor,
    ) -> None:
        layers.forward_cached(
            x,
            step.batch,
            planes,
            self._workspace,
            inputs["positions"],
            self._stream,
            step.sources,
        )


def _planes_from(layer: int, planes: kernels.Tensor) -> kernels.Tensor:
    """The planes of this layer and those after it."""
    count, *page = planes.shape
    begin = planes.nbytes // count * 2 * layer
    return planes.section(begin, [count - 2 * layer, *page], planes.dtype)


class SourceQueries(NamedTuple):
    """What stands in a layer in front of its attention to sources, and that attention's norm and
    queries. They share the layer's weights."""

    before: kernels.Stack
    norm: kernels.Norm | None
    q: kernels.Linear


class BuiltEmbeddings:
    """The input block of texts: Embeddings with their weights."""

    def __init__(self, embeddings: Embeddings, weights: Weights, place: Placement) -> None:
        position, types, norm = embeddings.position, embeddings.token_type, embeddings.norm
        self._place = place
        self._scale = embeddings.scale
        self._word = weights.words(embeddings)
        if isinstance(position, Sinusoids):
            self._position: kernels.Tensor | None = place.floats(_table(position), "positions")
        else:
            self._position = weights.table(position) if position else None
        self._token_type = weights.table(types) if types else None
        self._norm = (*weights.norm(norm), norm.eps) if norm else None
        self._projection = weights.linear(embeddings.projection) if embeddings.projection else None
        self._narrow_room: kernels.Tensor | None = None

    def forward(self, x: kernels.Tensor, inputs: NamedTensors) -> None:
        """Fills x [tokens, hidden]."""
        stream = self._place.stream
        embedded = x if self._projection is None else self._narrow(x.shape[0])
        ids, word, position = inputs["input_ids"], self._word, self._position
        positions = None if position is None else inputs["positions"]
        if self._norm is None or self._scale != 1:
            kernels.embed(embedded, ids, positions, word, position, self._scale, stream)
            if self._norm is not None:
                kernels.layer_norm(embedded, embedded, *self._norm, stream)
        else:
            types = None if self._token_type is None else inputs["token_type_ids"]
            tables = word, position, self._token_type
            kernels.embed_layer_norm(embedded, ids, positions, types, *tables, *self._norm, stream)
        if self._projection is not None:
            kernels.linear(x, embedded, self._projection, "none", stream)

    def _narrow(self, tokens: int) -> kernels.Tensor:
        """Room for embeddings before their projection; where forwards are recorded, always the
        same."""
        assert self._projection is not None
        width = self._projection.in_features
        if tokens > MOST_TOKENS:
            return self._place.empty(tokens, width)
        if self._narrow_room is None:
            self._narrow_room = self._place.empty(MOST_TOKENS, width)
        return self._narrow_room.first(tokens)


def _table(position: Sinusoids) -> NDArray[np.float32]:
    rows = position.skipped + position.rows
    if position.padding_index is None:
        return sinusoids(rows, position.columns)[position.skipped :]
    table = tensor2tensor_sinusoids(rows, position.columns)
    table[position.padding_index] = 0
    return table[position.skipped :]


class LayerBuilder:
    """Layers share the tables of their angles and biases."""

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
        """The queries of a built layer to its source."""
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
            # The kernels let distances beyond a table take its ends.
            length = min(self._max_length, bias.max_distance + 1)
            buckets = relative_buckets(
                length, bias.table.rows, bias.max_distance, causal=bias.causal
            )
            by_distance = self._weights.fp32(bias.table.name)[buckets].T
            self._biases[bias] = self._place.exact(by_distance, np.float32, "weights")
        return self._biases[bias]

"""A Stack with its weights: the input block, the layers and the final norm, of encoders and of
decoders.

Nothing here knows an architecture by name. Hidden states are in one [tokens, hidden] matrix that
each layer updates in place; temporaries are in a workspace.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewire import kernels
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Frames, Patches, Stack
from fusewire.models.embeddings import BuiltEmbeddings
from fusewire.models.frames import BuiltFrames
from fusewire.models.inputs import NamedTensors
from fusewire.models.layer_builder import LayerBuilder
from fusewire.models.patches import BuiltPatches
from fusewire.models.step_batch import PagedStep
from fusewire.placement import Placement


class BuiltStack:
    """A Stack with its weights. Its forwards allocate only from the workspace, so they can be
    captured."""

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
        """Writes x [tokens, hidden] for whole sequences, without a cache."""
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
        """As `forward`, for some tokens only: writes out [n, hidden] for tokens int64 [n], whose
        offsets are those of `outputs`. The last layer computes no others. The contents of x are
        undefined afterwards."""
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
        """Writes x [tokens, hidden] for new tokens, and their keys and values to the planes, which
        also hold those of their sources."""
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
        """As `forward_cached`, up to the cross-attention of the last of `layers`, which are in
        ascending order. Returns the cross-attention queries of each of these layers, [tokens, heads
        * head_dim]. The contents of x are undefined afterwards. Cannot be captured."""
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
    """Returns the planes of this layer and of those after it."""
    count, *page = planes.shape
    begin = planes.nbytes // count * 2 * layer
    return planes.section(begin, [count - 2 * layer, *page], planes.dtype)

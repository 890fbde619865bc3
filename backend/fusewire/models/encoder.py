"""The one encoder behind every architecture: builds a Blueprint's layers and runs packed batches.

Nothing here knows an architecture by name. Weights are prepacked once; hidden states live in one
[tokens, hidden] matrix that each layer updates in place; intermediates live in the model's
workspace.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.models.assemble import Weights, build_layer, relative_bias, rotary
from fusewire.models.blueprint import Blueprint
from fusewire.models.buckets import MOST_TOKENS
from fusewire.models.head import BuiltHead
from fusewire.models.packed_input import Layout, PackedInput, pack
from fusewire.models.positions import counted_positions, positions_after_padding
from fusewire.models.replay import Replays
from fusewire.placement import Placement
from fusewire.weights import Checkpoint

if TYPE_CHECKING:
    from fusewire.engine.batch import Batch


class EncoderModel:
    """A loaded encoder, with the head of one task.

    Serves one caller at a time: the workspace is shared between calls, so two threads must not be
    inside one model at once (load the folder twice, or hold a lock).
    """

    def __init__(
        self,
        blueprint: Blueprint,
        checkpoint: Checkpoint,
        head: str | None,
        place: Placement,
        *,
        config: dict[str, Any],
        folder: Path | None,
        id2label: list[str],
    ) -> None:
        """Reads what the encoder and `head` (a key of blueprint.task_heads) need; CheckpointError
        when the checkpoint does not hold exactly that and known other heads."""
        tensors = blueprint.tensors(head)
        checkpoint.check(tensors, blueprint.other_heads)
        self.place = place
        self.config = config
        self.folder = folder
        self.id2label = id2label
        self.max_length = blueprint.max_length
        self.hidden_size = blueprint.hidden_size
        self.vocab_size = blueprint.embeddings.word.rows
        types = blueprint.embeddings.token_type
        self.type_vocab_size = types.rows if types else 0
        self._padding_index = blueprint.padding_index
        # An arena that recordings point at keeps its size.
        shrink_after = 2**31 - 1 if place.stream.can_capture else 1024
        self._workspace = kernels.Workspace(
            kernels.default_allocator(place.device), shrink_after=shrink_after
        )

        place.reserve(sum(math.prod(shape) for shape in tensors.values()), "weights")
        weights = Weights(checkpoint, place)
        embeddings = blueprint.embeddings
        self._word = weights.table(embeddings.word)
        self._position = weights.table(embeddings.position) if embeddings.position else None
        self._token_type = weights.table(types) if types else None
        self._embedding_norm = weights.norm(embeddings.norm)
        self._embedding_eps = embeddings.norm.eps
        self._projection = weights.linear(embeddings.projection) if embeddings.projection else None

        distinct = dict.fromkeys(blueprint.layers)  # ALBERT runs one layer many times
        built = {layer: build_layer(blueprint, layer, weights) for layer in distinct}
        angles = {
            theta: rotary(blueprint, theta, place) for theta in {y.rope_theta for y in distinct}
        }
        self._layers = [(built[y], angles[y.rope_theta]) for y in blueprint.layers]
        self._relative_bias = relative_bias(blueprint, checkpoint, place)
        self._final_norm = weights.norm(blueprint.final_norm) if blueprint.final_norm else None
        self._final_eps = blueprint.final_norm.eps if blueprint.final_norm else 0.0
        self._head = BuiltHead(blueprint.task_heads[head], weights, place) if head else None
        self._embedded: kernels.Tensor | None = None
        self._replays: Replays | None = None
        self.computed_tokens = 0  # rows of the last `encode`, padding of its bucket included

    @property
    def uses_token_types(self) -> bool:
        """Whether token_type_ids change the result; where not, they are ignored."""
        return self.type_vocab_size > 1

    @property
    def has_head(self) -> bool:
        return self._head is not None

    @property
    def replay_counts(self) -> tuple[int, int]:
        """So far: batches that replayed a recorded forward, and small ones that found none."""
        replays = self._replays
        return (0, 0) if replays is None else (replays.hits, replays.misses)

    def record_forwards(self, max_tokens: int = MOST_TOKENS) -> None:
        """From now on batches of a shape seen before replay a recorded forward, where the device
        can record (CUDA graphs); hidden states then hold until the next `encode`. Memory for
        batches of `max_tokens` is taken now, and one sequence alone is recorded for every length of
        the model, which takes seconds."""
        if not self.place.stream.can_capture:
            return
        # Weakly: without a cycle a model goes with its last user, not when Python collects.
        ours = WeakMethod(self._forward)

        def forward(inputs: PackedInput, batch: kernels.SequenceBatch, x: kernels.Tensor) -> None:
            bound = ours()
            assert bound is not None
            bound(inputs, batch, x)

        self._replays = Replays(
            self.place, forward, self._workspace, self.hidden_size, self.max_length, max_tokens
        )
        self._replays.warm_up()

    def encode(self, batch: Batch) -> kernels.Tensor:
        """The last hidden state of each token, [tokens, hidden] in packed order, where the model
        is placed; with recorded forwards it holds until the next `encode`.

        Raises InvalidInput when an id, a token type or a length is out of the model's range.
        """
        lengths = np.diff(batch.cu_seqlens)
        self._check(batch, lengths)
        ids, offsets = batch.input_ids, batch.cu_seqlens
        positions = self._positions(batch, lengths)
        types = batch.token_type_ids if self.uses_token_types else None
        if self._replays is not None:
            longest = int(lengths.max())
            replayed = self._replays.run(ids, positions, types, offsets, longest)
            if replayed is not None:
                hidden, self.computed_tokens = replayed
                return hidden
        layout = Layout(ids.size, lengths.size)
        block = pack(layout, ids, positions, types, offsets)
        inputs = PackedInput.upload(layout, block, self.place)
        if self._replays is not None:
            hidden = self._replays.hidden(ids.size)
        else:
            hidden = self.place.empty(ids.size, self.hidden_size)
        self._forward(inputs, inputs.batch(offsets), hidden)
        self.computed_tokens = hidden.shape[0]
        return hidden

    def logits(self, hidden: kernels.Tensor, batch: Batch) -> NDArray[np.float32]:
        """The head's scores, fp32: [sequences, labels] where the task pools (classify), else
        [tokens, labels] (tag) or [tokens, 2] (answer: start, end)."""
        return self.place.numpy(self._built_head().apply(hidden, batch.cu_seqlens))

    def fill_logits(self, hidden: kernels.Tensor, rows: NDArray[np.int64]) -> kernels.Tensor:
        """Vocabulary scores of the tokens at `rows` (int64 [n], n >= 1, indices into the packed
        batch): [n, vocabulary]. Only these rows are computed."""
        picked = self.place.empty(rows.size, self.hidden_size)
        kernels.gather_rows(picked, hidden, self.place.exact(rows, np.int64), self.place.stream)
        return self._built_head().apply(picked, None)

    def workspace_stats(self) -> dict[str, int]:
        """The arena's counters, as the kernel library reports them."""
        return self._workspace.stats()

    def _forward(
        self, inputs: PackedInput, batch: kernels.SequenceBatch, x: kernels.Tensor
    ) -> None:
        """Fills x [tokens, hidden]. Takes memory from the workspace alone: it can be recorded."""
        stream = self.place.stream
        embedded = x if self._projection is None else self._narrow(x.shape[0])
        kernels.embed_layer_norm(
            embedded,
            inputs.ids,
            None if self._position is None else inputs.positions,
            None if self._token_type is None else inputs.types,
            self._word,
            self._position,
            self._token_type,
            *self._embedding_norm,
            self._embedding_eps,
            stream,
        )
        if self._projection is not None:
            kernels.linear(x, embedded, self._projection, "none", stream)
        for layer, angles in self._layers:
            layer.forward(
                x,
                batch,
                self._workspace,
                self._relative_bias,
                None if angles is None else (*angles, inputs.positions),
                stream,
            )
        if self._final_norm is not None:
            kernels.layer_norm(x, x, *self._final_norm, self._final_eps, stream)

    def _narrow(self, tokens: int) -> kernels.Tensor:
        """Room for embeddings before their projection; where forwards are recorded, always the
        same."""
        width = self._word.shape[1]
        if tokens > MOST_TOKENS:
            return self.place.empty(tokens, width)
        if self._embedded is None:
            self._embedded = self.place.empty(MOST_TOKENS, width)
        return self._embedded.first(tokens)

    def _built_head(self) -> BuiltHead:
        if self._head is None:
            raise ConfigurationError(
                "task: got a model loaded without a head, wanted one of classify, tag, answer, "
                "fill; load it for that task"
            )
        return self._head

    def _positions(self, batch: Batch, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        if self._padding_index is None:
            return counted_positions(batch.cu_seqlens, lengths)
        return positions_after_padding(
            batch.input_ids, batch.cu_seqlens, lengths, self._padding_index
        )

    def _check(self, batch: Batch, lengths: NDArray[np.int32]) -> None:
        if lengths.size == 0 or lengths.min() < 1:
            raise InvalidInput("input_ids", "an empty sequence", "1 token or more", "leave it out")
        longest = int(lengths.max())
        if longest > self.max_length:
            raise InvalidInput(
                "input_ids",
                f"{longest} tokens",
                f"at most {self.max_length}",
                "shorten the sequence",
            )
        _check_range("input_ids", batch.input_ids, self.vocab_size)
        if self.uses_token_types:
            _check_range("token_type_ids", batch.token_type_ids, self.type_vocab_size)


def _check_range(field: str, ids: NDArray[Any], end: int) -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= end:
        raise InvalidInput(
            field,
            low if low < 0 else high,
            f"0..{end - 1}",
            "use the tokenizer of this model",
        )

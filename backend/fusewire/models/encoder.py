"""The encoder of all text architectures: runs packed batches through a stack and a head."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Blueprint, Embeddings
from fusewire.models.buckets import MOST_TOKENS
from fusewire.models.head import BuiltHead
from fusewire.models.inputs import Inputs, packed_layout
from fusewire.models.positions import text_positions
from fusewire.models.replay import Replays
from fusewire.models.whole_sequences import MOST_HEAD_ROWS, WholeSequenceModel
from fusewire.placement import Placement
from fusewire.weights import Checkpoint

if TYPE_CHECKING:
    from fusewire.batch import Batch


class EncoderModel(WholeSequenceModel):
    """A loaded encoder, with the head of one task."""

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
        super().__init__(blueprint, head, checkpoint, place, config=config, folder=folder)
        self.id2label = id2label
        embeddings = blueprint.stack.embeddings
        assert isinstance(embeddings, Embeddings)
        self.vocab_size = embeddings.word.rows
        self.type_vocab_size = embeddings.token_type.rows if embeddings.token_type else 0
        self._padding_index = embeddings.padding_index
        self._replays: Replays | None = None
        self.computed_tokens = 0  # rows of the last `encode`, padding of its bucket included

    def _load_head(self, blueprint: Blueprint, head: str | None, weights: Weights) -> None:
        self._head = BuiltHead(blueprint.task_heads[head], weights, self.place) if head else None

    @property
    def uses_token_types(self) -> bool:
        """Whether token_type_ids change the result; otherwise they are ignored."""
        return self.type_vocab_size > 1

    @property
    def has_head(self) -> bool:
        return self._head is not None

    @property
    def replay_counts(self) -> tuple[int, int]:
        """Counts so far: batches that replayed a captured forward, and small batches that found
        none."""
        replays = self._replays
        return (0, 0) if replays is None else (replays.hits, replays.misses)

    def record_forwards(self, max_tokens: int = MOST_TOKENS) -> None:
        """From now on batches of a shape seen before replay a captured forward (CUDA graphs), where
        the device can; hidden states are then valid until the next `encode`. Tunes first, allocates
        the memory for batches of `max_tokens`, and captures a single sequence of every length of
        the model, which takes seconds."""
        self.tune(max_tokens)
        if not self.place.stream.can_capture:
            return
        self._replays = Replays(
            self.place,
            self._forward,
            self._workspace,
            self.hidden_size,
            self.max_length,
            max_tokens,
        )
        self._replays.warm_up()

    def encode(self, batch: Batch) -> kernels.Tensor:
        """Returns the last hidden state of each token, [tokens, hidden] in packed order, on the
        model's device; with captured forwards it is valid until the next `encode`.

        Raises InvalidInput when an id, a token type or a length is out of the model's range.
        """
        lengths = np.diff(batch.cu_seqlens)
        self._check(batch, lengths)
        arrays = self._arrays(batch, lengths)
        if self._replays is not None:
            replayed = self._replays.run(arrays, int(lengths.max()))
            if replayed is not None:
                hidden, self.computed_tokens = replayed
                return hidden
        layout = packed_layout(batch.tokens, lengths.size)
        inputs = Inputs.upload(layout, arrays, self.place)
        if self._replays is not None:
            hidden = self._replays.hidden(batch.tokens)
        else:
            hidden = self.place.empty(batch.tokens, self.hidden_size)
        self._forward(inputs, inputs.sequences(batch.cu_seqlens), hidden)
        self.computed_tokens = hidden.shape[0]
        return hidden

    def logits(self, hidden: kernels.Tensor, batch: Batch) -> NDArray[np.float32]:
        """Returns the head's logits in fp32: [sequences, labels] if the task pools (classify), else
        [tokens, labels] (tag) or [tokens, 2] (answer: start, end)."""
        return self.place.numpy(self._built_head().apply(hidden, batch.cu_seqlens))

    def fill_logits(self, hidden: kernels.Tensor, rows: NDArray[np.int64]) -> kernels.Tensor:
        """Returns the vocabulary logits [n, vocabulary] of the tokens at `rows` (int64 [n], n >= 1,
        indices into the packed batch). Only these rows are computed."""
        picked = self.place.empty(rows.size, self.hidden_size)
        kernels.gather_rows(picked, hidden, self.place.exact(rows, np.int64), self.place.stream)
        return self._built_head().apply(picked, None)

    def _try_out(self, hidden: kernels.Tensor) -> None:
        tokens = hidden.shape[0]
        offsets = np.append(np.arange(0, tokens, self.max_length), tokens).astype(np.int32)
        layout = packed_layout(tokens, offsets.size - 1)
        inputs = Inputs.upload(layout, {"cu_seqlens": offsets}, self.place)
        self._forward(inputs, inputs.sequences(offsets), hidden)
        if self._head is not None and tokens <= MOST_HEAD_ROWS:
            self._head.apply(hidden, None)

    def _forward(self, inputs: Inputs, batch: kernels.SequenceBatch, x: kernels.Tensor) -> None:
        """Writes x [tokens, hidden]. Allocates only from the workspace, so it can be captured."""
        self._stack.forward(x, inputs, batch)

    def _built_head(self) -> BuiltHead:
        if self._head is None:
            raise ConfigurationError(
                "task: got a model loaded without a head, wanted one of classify, tag, answer, "
                "fill; load it for that task"
            )
        return self._head

    def _arrays(self, batch: Batch, lengths: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """Returns the arrays that `packed_layout` has room for."""
        positions = text_positions(batch.input_ids, batch.cu_seqlens, lengths, self._padding_index)
        types = {"token_type_ids": batch.token_type_ids} if self.uses_token_types else {}
        return {
            "input_ids": batch.input_ids,
            "positions": positions,
            "cu_seqlens": batch.cu_seqlens,
            **types,
        }

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

"""From the hidden states of a packed batch to a task's results per sequence, on the host.

A head is called with the hidden states [tokens, hidden], their batch, and the options of each
sequence (None for a head without options). It returns a result per sequence, in arrays of its own,
since the next forward overwrites hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.batch import Batch
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Head
from fusewire.models.head import BuiltHead
from fusewire.models.stored_weights import Dense
from fusewire.placement import Placement
from fusewire.weights import Checkpoint

if TYPE_CHECKING:
    from fusewire.models.encoder import EncoderModel

TaskHead = Callable[[kernels.Tensor, Batch, Sequence[Any]], list[Any]]

_MOST_SCORES = 1 << 25  # scores over the vocabulary held at once: 128 MiB in fp32


def hidden_states(model: EncoderModel) -> TaskHead:
    """Returns the head for hidden states of each sequence, float32 [n, hidden]."""
    return lambda hidden, batch, _: _of_each(model.place.numpy(hidden), batch)


def token_logits(model: EncoderModel) -> TaskHead:
    """Returns the head for logits of each token of each sequence, float32 [n, labels]."""
    return lambda hidden, batch, _: _of_each(model.logits(hidden, batch), batch)


def sequence_logits(model: EncoderModel) -> TaskHead:
    """Returns the head for logits of each sequence, float32 [labels]."""
    return lambda hidden, batch, _: list(model.logits(hidden, batch).copy())


class EmbeddingOptions(NamedTuple):
    pooling: str  # as `kernels.pool` names it
    normalize: bool  # scale to length 1 (L2)
    size: int | None = None  # number of leading elements to keep, whose length is not 1 any more
    rescale: bool = False  # scale the kept elements to length 1


class Embedding:
    """An embedding of each sequence, float32 [size]: pooled hidden states, passed through dense
    layers, normalised."""

    def __init__(
        self,
        place: Placement,
        hidden_size: int,
        dense: Sequence[Dense] = (),
        weights: Checkpoint | None = None,
    ) -> None:
        """`place`: the placement of the hidden states. `weights`: those of the dense layers, which
        are not in the model's own checkpoint."""
        self._place = place
        self._hidden_size = hidden_size
        self._dense: BuiltHead | None = None
        if weights is not None:
            chain = Head(None, tuple(dense))
            self._dense = BuiltHead(chain, Weights(weights, place), place)

    def __call__(
        self, hidden: kernels.Tensor, batch: Batch, options: Sequence[EmbeddingOptions]
    ) -> list[NDArray[np.float32]]:
        sequences = self._place.sequences(batch.cu_seqlens)
        # Requests may pool and normalise differently, but almost always have the same options.
        pooled = {each: self._pooled(hidden, sequences, each) for each in set(options)}
        return [pooled[each][row] for row, each in enumerate(options)]

    def _pooled(
        self, hidden: kernels.Tensor, sequences: kernels.SequenceBatch, options: EmbeddingOptions
    ) -> NDArray[np.float32]:
        place = self._place
        out = place.empty(sequences.sequences, self._hidden_size)
        kernels.pool(out, hidden, sequences, options.pooling, place.stream)
        if self._dense is not None:
            out = self._dense.apply(out, None)
        if options.normalize:
            kernels.l2_normalize(out, out, place.stream)
        vectors = place.numpy(out)
        if options.size is not None:
            vectors = np.ascontiguousarray(vectors[:, : options.size])
            if options.rescale:
                vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors


class LikeliestTokens:
    """The most likely tokens for each mask token of each sequence, most likely first: (token ids
    int64, probabilities float32), both [masks, k]. Options: k."""

    def __init__(self, model: EncoderModel, mask_id: int | None) -> None:
        """`mask_id`: None if the folder has no mask token; then the head must not be called."""
        self._model = model
        self._mask_id = mask_id

    def __call__(
        self, hidden: kernels.Tensor, batch: Batch, options: Sequence[int]
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        rows = np.flatnonzero(batch.input_ids == self._mask_id)
        # Scores over the vocabulary take far more memory than anything else: compute in chunks.
        step = max(1, _MOST_SCORES // self._model.vocab_size)
        parts = [
            self._likeliest(hidden, rows[start : start + step], max(options))
            for start in range(0, len(rows), step)
        ]
        tokens, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        bounds = np.searchsorted(rows, batch.cu_seqlens)
        return [
            (tokens[first:end, :k], scores[first:end, :k])
            for first, end, k in zip(bounds, bounds[1:], options, strict=False)
        ]

    def _likeliest(
        self, hidden: kernels.Tensor, rows: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns the k most likely tokens at `rows`: ids and probabilities [rows, k]."""
        place = self._model.place
        # Kernels may give finite probabilities to rows with NaN, which would hide it.
        finite = np.isfinite(place.numpy(hidden)[rows]).all(axis=1)
        logits = self._model.fill_logits(hidden, rows)
        kernels.softmax(logits, logits, place.stream)
        scores = place.empty(len(rows), k)
        tokens = place.empty(len(rows), k, dtype="int64")
        kernels.top_k(scores, tokens, logits, place.stream)
        found = np.where(finite[:, None], place.numpy(scores), np.nan)
        return place.numpy(tokens).copy(), found


def _of_each(values: NDArray[np.float32], batch: Batch) -> list[NDArray[np.float32]]:
    """Returns copies of the rows of each sequence, from values [tokens, ...]."""
    return [values[batch.rows(sequence)].copy() for sequence in range(batch.sequences)]

"""The input block of texts: looks up embeddings of tokens, positions and token types."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import (
    Embeddings,
    Sinusoids,
)
from fusewire.models.buckets import MOST_TOKENS
from fusewire.models.inputs import NamedTensors
from fusewire.models.positions import sinusoids, tensor2tensor_sinusoids
from fusewire.placement import Placement


class BuiltEmbeddings:
    """The input block of texts: Embeddings with their weights."""

    def __init__(self, embeddings: Embeddings, weights: Weights, place: Placement) -> None:
        position, types, norm = embeddings.position, embeddings.token_type, embeddings.norm
        self._place = place
        self._scale = embeddings.scale
        self._word = weights.token_embeddings(embeddings)
        if isinstance(position, Sinusoids):
            self._position: kernels.Tensor | None = place.floats(_table(position), "positions")
        else:
            self._position = weights.table(position) if position else None
        self._token_type = weights.table(types) if types else None
        self._norm = (*weights.norm(norm), norm.eps) if norm else None
        self._projection = weights.linear(embeddings.projection) if embeddings.projection else None
        self._narrow_room: kernels.Tensor | None = None

    def forward(self, x: kernels.Tensor, inputs: NamedTensors) -> None:
        """Writes x [tokens, hidden]."""
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
        """Returns a tensor for embeddings before their projection; the same one for every size that
        may be captured."""
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

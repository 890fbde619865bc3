"""A task head: pools the packed rows if the task does so, then applies a chain of dense layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import AttentionPooling, Head
from fusewire.placement import Placement


class BuiltHead:
    """A Head with its weights."""

    def __init__(self, head: Head, weights: Weights, place: Placement) -> None:
        assert not isinstance(head.pooling, AttentionPooling)
        self._place = place
        self._pooling = head.pooling
        self._norm = (*weights.norm(head.norm), head.norm.eps) if head.norm is not None else None
        self._chain = [
            (
                dense,
                weights.linear(dense),
                (*weights.norm(dense.norm), dense.norm.eps) if dense.norm is not None else None,
            )
            for dense in head.chain
        ]

    def apply(self, x: kernels.Tensor, cu_seqlens: NDArray[np.int32] | None) -> kernels.Tensor:
        """Maps [rows, hidden] to [rows, outputs], or to [sequences, outputs] if the head pools."""
        stream = self._place.stream
        if self._pooling is not None and cu_seqlens is not None:
            pooled = self._place.empty(len(cu_seqlens) - 1, x.shape[1])
            batch = self._place.sequences(cu_seqlens)
            kernels.pool(pooled, x, batch, self._pooling, stream)
            x = pooled
        if self._norm is not None:
            normed = self._place.empty(*x.shape)
            kernels.layer_norm(normed, x, *self._norm, stream)
            x = normed
        for dense, linear, norm in self._chain:
            y = self._place.empty(x.shape[0], dense.outputs)
            kernels.linear(y, x, linear, dense.activation, stream)
            if norm is not None:
                kernels.layer_norm(y, y, *norm, stream)
            x = y
        return x

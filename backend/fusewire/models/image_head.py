"""The head of image models: pools the hidden states of each image, then applies dense layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.assemble import Weights
from fusewire.models.attention_pooling import BuiltAttentionPooling
from fusewire.models.blueprint import AttentionPooling, Head
from fusewire.models.head import BuiltHead
from fusewire.placement import Placement


class BuiltImageHead:
    """A Head with its weights. Its pooling is one of `kernels.pool`, or

    leading: the leading tokens, concatenated, [images, leading * hidden];
    leading_and_mean: these and the mean of the patches, [images, (leading + 1) * hidden];
    mean_of_patches: only the mean of the patches, [images, hidden];
    an AttentionPooling: its output, [images, hidden].
    """

    def __init__(self, head: Head, leading: int, weights: Weights, place: Placement) -> None:
        self._leading = leading
        self._place = place
        self._pooling: str | BuiltAttentionPooling
        if isinstance(head.pooling, AttentionPooling):
            self._pooling = BuiltAttentionPooling(head.pooling, weights, place)
        else:
            assert head.pooling is not None
            self._pooling = head.pooling
        self._chain = BuiltHead(replace(head, pooling=None), weights, place)

    @property
    def reads(self) -> int | None:
        """The number of leading tokens of each image that the head reads; None: all tokens."""
        first = {"cls": 1, "leading": self._leading}
        return first.get(self._pooling) if isinstance(self._pooling, str) else None

    def apply(self, x: kernels.Tensor, cu_seqlens: NDArray[np.int32]) -> kernels.Tensor:
        """Maps [tokens, hidden] to [images, outputs]."""
        return self._chain.apply(self._pooled(x, cu_seqlens), None)

    def _pooled(self, x: kernels.Tensor, cu_seqlens: NDArray[np.int32]) -> kernels.Tensor:
        images = len(cu_seqlens) - 1
        if not isinstance(self._pooling, str):
            parts = self._pooling.apply(x, cu_seqlens)
        elif self._pooling == "leading":
            parts = self._rows(x, cu_seqlens[:-1, None] + np.arange(self._leading))
        elif self._pooling in ("leading_and_mean", "mean_of_patches"):
            # For the pooling kernel each leading token is a sequence, and so are all patches.
            begins = cu_seqlens[:-1, None] + np.arange(self._leading + 1, dtype=np.int32)
            parts = self._pool(x, np.append(begins.reshape(-1), cu_seqlens[-1]), "mean")
            if self._pooling == "mean_of_patches":
                parts = self._rows(parts, np.arange(1, images + 1) * (self._leading + 1) - 1)
        else:
            parts = self._pool(x, cu_seqlens, self._pooling)
        return parts.section(0, [images, parts.shape[0] // images * x.shape[1]], x.dtype)

    def _rows(self, x: kernels.Tensor, rows: NDArray[np.int64]) -> kernels.Tensor:
        picked = self._place.empty(rows.size, x.shape[1])
        where = self._place.exact(rows.reshape(-1), np.int64)
        kernels.gather_rows(picked, x, where, self._place.stream)
        return picked

    def _pool(
        self, x: kernels.Tensor, cu_seqlens: NDArray[np.int32], pooling: str
    ) -> kernels.Tensor:
        pooled = self._place.empty(len(cu_seqlens) - 1, x.shape[1])
        kernels.pool(pooled, x, self._place.sequences(cu_seqlens), pooling, self._place.stream)
        return pooled

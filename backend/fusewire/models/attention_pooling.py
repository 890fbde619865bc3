"""SigLIP's pooling: one row per image, the attention of a learned query to the image's tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import AttentionPooling
from fusewire.placement import Placement


class BuiltAttentionPooling:
    """AttentionPooling with its weights. The query is the same for every image, so it is computed
    once."""

    def __init__(self, pooling: AttentionPooling, weights: Weights, place: Placement) -> None:
        self._place = place
        name = pooling.weight.name
        q, k, v = np.split(weights.fp32(name), 3)
        q_bias, k_bias, v_bias = np.split(weights.fp32(pooling.bias.name), 3)
        self._query = weights.fp32(pooling.probe.name).reshape(1, -1) @ q.T + q_bias
        self._key = place.linear(k, k_bias, name)
        self._value = place.linear(v, v_bias, name)
        self._output = weights.linear(pooling.output)
        self._norm = (*weights.norm(pooling.norm), pooling.norm.eps)
        feed_forward = pooling.feed_forward
        self._inner_size = feed_forward.output.inputs
        self._intermediate = weights.linear(feed_forward.intermediate)
        self._activation = feed_forward.activation
        self._feed_forward_output = weights.linear(feed_forward.output)
        head_dim = pooling.norm.size // pooling.heads
        self._spec = kernels.AttentionSpec(heads=pooling.heads, scale=head_dim**-0.5)

    def apply(self, x: kernels.Tensor, cu_seqlens: NDArray[np.int32]) -> kernels.Tensor:
        """Pools [tokens, hidden] to [images, hidden]."""
        place, stream = self._place, self._place.stream
        tokens, hidden = x.shape
        images = len(cu_seqlens) - 1
        key, value = place.empty(tokens, hidden), place.empty(tokens, hidden)
        kernels.linear(key, x, self._key, "none", stream)
        kernels.linear(value, x, self._value, "none", stream)
        query = place.floats(np.repeat(self._query, images, axis=0), "query", "input")
        read, y = place.empty(images, hidden), place.empty(images, hidden)
        queries = place.sequences(np.arange(images + 1, dtype=np.int32))
        keys = place.sequences(cu_seqlens)
        kernels.attention(read, query, key, value, queries, keys, self._spec, None, None, stream)
        kernels.linear(y, read, self._output, "none", stream)
        kernels.layer_norm(read, y, *self._norm, stream)
        inner = place.empty(images, self._inner_size)
        kernels.linear(inner, read, self._intermediate, self._activation, stream)
        kernels.linear_add(y, inner, self._feed_forward_output, y, stream)
        return y

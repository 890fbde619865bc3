"""Recorded forwards of encoders: small batches that fit a bucket are a single launch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.kernels import SequenceBatch
from fusewire.models.buckets import MOST_TOKENS, Bucket, bucket_of
from fusewire.models.packed_input import Layout, PackedInput, pack
from fusewire.models.recordings import Recordings
from fusewire.placement import Placement

# forward(inputs, batch, hidden): fills hidden [inputs.layout.tokens, hidden]
Forward = Callable[[PackedInput, SequenceBatch, kernels.Tensor], None]


class Replays(Recordings[Bucket, PackedInput]):
    """The recordings of one encoder, by bucket."""

    def __init__(
        self,
        place: Placement,
        forward: Forward,
        workspace: kernels.Workspace,
        hidden_size: int,
        max_length: int,
        max_tokens: int,
    ) -> None:
        super().__init__(place, workspace)
        self._max_length = max_length
        self._max_tokens = max(max_tokens, MOST_TOKENS)
        self._forward = forward
        self._hidden = place.empty(self._max_tokens, hidden_size)
        widest = Layout(MOST_TOKENS, MOST_TOKENS)
        self._block = place.empty(widest.nbytes, dtype="uint8")

    def run(
        self,
        ids: NDArray[np.int64],
        positions: NDArray[np.int32],
        types: NDArray[np.int32] | None,
        cu_seqlens: NDArray[np.int32],
        max_seqlen: int,
    ) -> tuple[kernels.Tensor, int] | None:
        """(hidden states [tokens, hidden] that hold until the next run, tokens computed), or None
        for a batch that is not to be replayed: too large, or the first of its bucket."""
        bucket = self.bucket(ids.size, cu_seqlens.size - 1, max_seqlen)
        if bucket is None:
            return None
        found = self.find(bucket)
        if found is None:
            return None
        inputs, graph = found
        block = pack(inputs.layout, ids, positions, types, cu_seqlens)
        kernels.write(inputs.block, kernels.Tensor.from_numpy(block), self._place.stream)
        graph.replay(self._place.stream)
        return self._hidden.first(ids.size), bucket.tokens

    def bucket(self, tokens: int, sequences: int, max_seqlen: int) -> Bucket | None:
        """As `bucket_of`, no longer than the model's sequences."""
        bucket = bucket_of(tokens, sequences, max_seqlen)
        if bucket is None:
            return None
        return bucket._replace(max_seqlen=min(bucket.max_seqlen, self._max_length))

    def hidden(self, tokens: int) -> kernels.Tensor:
        """Room for hidden states [tokens, hidden] that hold until the next run, replayed or not."""
        if tokens > self._max_tokens:
            return self._place.empty(tokens, self._hidden.shape[1])
        return self._hidden.first(tokens)

    def warm_up(self) -> None:
        """Runs the largest batch once, after which the arena stays where it is, and records one
        sequence alone of every length that the model takes."""
        if self._max_tokens > MOST_TOKENS:
            layout = Layout(self._max_tokens, -(-self._max_tokens // self._max_length))
            inputs = PackedInput.upload(layout, np.zeros(layout.nbytes, np.uint8), self._place)
            bounds = SequenceBatch.bucket(inputs.offsets, self._max_tokens, self._max_length)
            self._forward(inputs, bounds, self._hidden)
        longest = min(self._max_length, MOST_TOKENS)
        buckets = {self.bucket(n, 1, n): None for n in range(1, longest + 1)}
        # The longest first: it makes the arena fit the others, so that none moves.
        for bucket in list(buckets)[::-1]:
            if bucket is not None:
                self.record(bucket)

    def _prepare(self, bucket: Bucket) -> tuple[PackedInput, Callable[[], None]]:
        """No tokens at all, in the bucket's buffers, and the forward over them."""
        layout = Layout(bucket.tokens, bucket.sequences)
        inputs = PackedInput(layout, self._block.first(layout.nbytes))
        hidden = self._hidden.first(bucket.tokens)
        batch = SequenceBatch.bucket(inputs.offsets, bucket.tokens, bucket.max_seqlen)
        empty = np.zeros(0, np.int64)
        block = pack(layout, empty, empty.astype(np.int32), None, np.zeros(1, np.int32))
        kernels.write(inputs.block, kernels.Tensor.from_numpy(block), self._place.stream)
        return inputs, lambda: self._forward(inputs, batch, hidden)

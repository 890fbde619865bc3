"""Recorded forwards (CUDA graphs): a batch that fits one is a single launch instead of hundreds.

A recording holds addresses: of the static buffers here, of the weights, and of the workspace's
arena. So inputs are copied into the buffers before a replay, and all recordings are dropped when
the arena moves.
"""

from __future__ import annotations

import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.kernels import SequenceBatch
from fusewire.models.buckets import MOST_TOKENS, Bucket, bucket_of
from fusewire.models.packed_input import Layout, PackedInput, pack
from fusewire.placement import Placement

_log = logging.getLogger(__name__)

# Each holds device memory of its own for its launches.
MOST_RECORDINGS = 256

# forward(inputs, batch, hidden): fills hidden [inputs.layout.tokens, hidden]
Forward = Callable[[PackedInput, SequenceBatch, kernels.Tensor], None]


class Replays:
    """The recordings of one model, by bucket, least recently used out."""

    def __init__(
        self,
        place: Placement,
        forward: Forward,
        workspace: kernels.Workspace,
        hidden_size: int,
        max_length: int,
        max_tokens: int,
    ) -> None:
        self._max_length = max_length
        self._max_tokens = max(max_tokens, MOST_TOKENS)
        self._place = place
        self._forward = forward
        self._workspace = workspace
        self._recorded: OrderedDict[Bucket, tuple[PackedInput, kernels.Graph]] = OrderedDict()
        self._seen: OrderedDict[Bucket, None] = OrderedDict()
        self._hidden = place.empty(self._max_tokens, hidden_size)
        widest = Layout(MOST_TOKENS, MOST_TOKENS)
        self._block = place.empty(widest.nbytes, dtype="uint8")
        self._arena = workspace.generation
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._recorded)

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
        self._drop_stale()
        found = self._recorded.get(bucket)
        if found is None:
            self.misses += 1
            if bucket not in self._seen:  # a shape that comes once is not worth recording
                self._seen[bucket] = None
                if len(self._seen) > 4 * MOST_RECORDINGS:
                    self._seen.popitem(last=False)
                return None
            try:
                found = self.record(bucket)
            except kernels.Error as error:
                # Another library's wait for the whole device breaks a recording; the batch is fine.
                _log.warning("a forward of %d tokens was not recorded: %s", bucket.tokens, error)
                return None
        else:
            self.hits += 1
            self._recorded.move_to_end(bucket)
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

    def record(self, bucket: Bucket) -> tuple[PackedInput, kernels.Graph]:
        """Runs the bucket's forward once, which makes the arena fit and lets kernels be chosen,
        then records it."""
        layout = Layout(bucket.tokens, bucket.sequences)
        inputs = PackedInput(layout, self._block.first(layout.nbytes))
        hidden = self._hidden.first(bucket.tokens)
        batch = SequenceBatch.bucket(inputs.offsets, bucket.tokens, bucket.max_seqlen)
        stream = self._place.stream
        empty = np.zeros(0, np.int64)
        block = pack(layout, empty, empty.astype(np.int32), None, np.zeros(1, np.int32))
        kernels.write(inputs.block, kernels.Tensor.from_numpy(block), stream)
        self._forward(inputs, batch, hidden)
        self._drop_stale()
        with _no_collection():
            graph = kernels.capture(stream, lambda: self._forward(inputs, batch, hidden))
        self._recorded[bucket] = inputs, graph
        while len(self._recorded) > MOST_RECORDINGS:
            self._recorded.popitem(last=False)
        return inputs, graph

    def _drop_stale(self) -> None:
        if self._workspace.generation != self._arena:
            self._recorded.clear()
            self._arena = self._workspace.generation


@contextmanager
def _no_collection() -> Iterator[None]:
    """Another model that is collected now would wait for its work, which breaks a recording."""
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            gc.enable()

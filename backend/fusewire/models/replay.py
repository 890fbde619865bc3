"""Captured forwards of encoders: small batches that fit a bucket are replayed by a single
launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from fusewire import kernels
from fusewire.kernels import SequenceBatch
from fusewire.models.buckets import MOST_TOKENS, Bucket, bucket_of
from fusewire.models.inputs import Inputs, packed_layout
from fusewire.models.recordings import BlockRecordings
from fusewire.placement import Placement

# forward(inputs, batch, hidden): writes hidden [tokens, hidden]
Forward = Callable[[Inputs, SequenceBatch, kernels.Tensor], None]


class Replays(BlockRecordings[Bucket]):
    """The captured forwards of one encoder, by bucket."""

    def __init__(
        self,
        place: Placement,
        forward: Forward,
        workspace: kernels.Workspace,
        hidden_size: int,
        max_length: int,
        max_tokens: int,
    ) -> None:
        super().__init__(place, workspace, forward)
        self._max_length = max_length
        self._max_tokens = max(max_tokens, MOST_TOKENS)
        self._hidden = place.empty(self._max_tokens, hidden_size)
        widest = packed_layout(MOST_TOKENS, MOST_TOKENS)
        self._block = place.empty(widest.nbytes, dtype="uint8")

    def run(
        self, arrays: Mapping[str, NDArray[Any]], max_seqlen: int
    ) -> tuple[kernels.Tensor, int] | None:
        """Returns (hidden states [tokens, hidden] that are valid until the next run, tokens
        computed), or None for a batch that is not replayed: too large, or the first of its bucket.
        `arrays`: those of a `packed_layout`."""
        tokens = arrays["input_ids"].size
        bucket = self.bucket(tokens, arrays["cu_seqlens"].size - 1, max_seqlen)
        if bucket is None or self.replay(bucket, arrays) is None:
            return None
        return self._hidden.first(tokens), bucket.tokens

    def bucket(self, tokens: int, sequences: int, max_seqlen: int) -> Bucket | None:
        """As `bucket_of`, with a maximum length of at most the model's."""
        bucket = bucket_of(tokens, sequences, max_seqlen)
        if bucket is None:
            return None
        return bucket._replace(max_seqlen=min(bucket.max_seqlen, self._max_length))

    def hidden(self, tokens: int) -> kernels.Tensor:
        """Returns a tensor for hidden states [tokens, hidden] that are valid until the next run,
        replayed or not."""
        if tokens > self._max_tokens:
            return self._place.empty(tokens, self._hidden.shape[1])
        return self._hidden.first(tokens)

    def warm_up(self) -> None:
        """Runs the largest batch once, after which the arena is not reallocated, and captures a
        single sequence of every length that the model takes."""
        if self._max_tokens > MOST_TOKENS:
            layout = packed_layout(self._max_tokens, -(-self._max_tokens // self._max_length))
            inputs = Inputs.upload(layout, {}, self._place)
            offsets = inputs["cu_seqlens"]
            bounds = SequenceBatch.bucket(offsets, self._max_tokens, self._max_length)
            self._forward(inputs, bounds, self._hidden)
        longest = min(self._max_length, MOST_TOKENS)
        buckets = {self.bucket(n, 1, n): None for n in range(1, longest + 1)}
        # The longest first: it grows the arena to its final size, so that no capture moves it.
        for bucket in list(buckets)[::-1]:
            if bucket is not None:
                self.record(bucket)

    def _prepare(self, bucket: Bucket) -> tuple[Inputs, Callable[[], None]]:
        """Returns the bucket's buffers with sequences without tokens, and the forward over them."""
        layout = packed_layout(bucket.tokens, bucket.sequences)
        inputs = Inputs(layout, self._block.first(layout.nbytes))
        hidden = self._hidden.first(bucket.tokens)
        batch = SequenceBatch.bucket(inputs["cu_seqlens"], bucket.tokens, bucket.max_seqlen)
        self._write(inputs, {})
        return inputs, lambda: self._forward(inputs, batch, hidden)

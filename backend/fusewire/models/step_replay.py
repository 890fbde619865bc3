"""Captured steps of decoders: steps of one token per sequence, the most frequent ones, are replayed
by a single launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fusewire import kernels
from fusewire.models.buckets import power_of_two
from fusewire.models.decoder_cache import DecoderCache
from fusewire.models.inputs import Inputs
from fusewire.models.recordings import BlockRecordings
from fusewire.models.step_batch import PagedStep, StepBatch, paged_bucket, step_layout
from fusewire.models.step_there import StepThere
from fusewire.placement import Placement

# Beyond this, computing a step takes the device longer than launching it takes the host. The limit
# is larger with sources: decoders of translation are small, and a source has many beams.
MOST_SEQUENCES = 256
MOST_WITH_SOURCES = 1024
# Numbers of sequences are rounded up to multiples of this. Up to the next multiple a matrix product
# costs the same: it reads the weights once.
SEQUENCES_STEP = 8
MANY_SEQUENCES_STEP = 16  # beyond MOST_SEQUENCES
# Minimum width of block tables: uploading the pages of 16 * 128 positions costs no more than fewer.
LEAST_PAGES = 128
# Width of the block tables of steps with sources whose targets, or targets and sources, are this
# short: two tables for each of many beams take long to upload, and the kernels of short contexts do
# not split the keys.
SHORT_PAGES = 8

# forward(inputs, step, cache, rooms): writes rooms, [tokens, width] each: hidden states, then the
# output of each matrix of the head; the last are the logits
Forward = Callable[[Inputs, PagedStep, DecoderCache, list[kernels.Tensor]], None]


class StepBucket(NamedTuple):
    """Upper bounds of a step; every step within them may replay the same captured graph."""

    sequences: int
    pages: int  # of the longest sequence
    source_pages: int = 0  # of the longest source; 0: they have none


class StepReplays(BlockRecordings[StepBucket]):
    """The captured steps of one decoder with one cache, by bucket."""

    def __init__(
        self,
        place: Placement,
        forward: Forward,
        workspace: kernels.Workspace,
        cache: DecoderCache,
        widths: list[int],
        max_sequences: int,
        *,
        sources: bool = False,
    ) -> None:
        """`sources`: whether steps have sources."""
        super().__init__(place, workspace, forward)
        self.cache = cache
        self.max_sequences = min(max_sequences, MOST_WITH_SOURCES if sources else MOST_SEQUENCES)
        self._sources = sources
        self.padding_tokens = 0  # computed by replays so far
        # What the last step has left in the input block of its graph, if later steps can reuse it.
        self._there: StepThere | None = None
        self._rooms = [place.matrix(_rounded(self.max_sequences), width) for width in widths]

    def run(self, step: StepBatch) -> kernels.Tensor | None:
        """Returns logits [sequences, vocabulary] that are valid until the next run, or None for a
        step that is not replayed: it has several tokens of a sequence or tokens without logits, is
        too large, or is the first of its bucket."""
        there, self._there = self._there, None
        if there is not None and there.goes_on(step) and self._holds(there):
            there.replay(step, self._place)
            self._there, bucket = there, there.bucket
        else:
            found = self.bucket(step)
            if found is None or self.replay(found, step.arrays, step.there) is None:
                return None
            bucket = found
            if step.rows is not None:
                self._there = StepThere(bucket, self.recorded[bucket], step)
        self.padding_tokens += bucket.sequences - step.sequences
        return self._rooms[-1].first(step.sequences)

    def _holds(self, there: StepThere) -> bool:
        """Whether its graph has not been dropped."""
        return self.find(there.bucket) is there.recording

    def bucket(self, step: StepBatch) -> StepBucket | None:
        count = step.sequences
        if not (count == step.tokens == step.logit_rows.size and count <= self.max_sequences):
            return None
        if (step.logit_rows != np.arange(count)).any():
            return None
        tables = [step.block_table] + ([step.sources.block_table] if step.sources else [])
        return StepBucket(_rounded(count), *table_widths(*(table.shape[1] for table in tables)))

    def warm_up(self) -> None:
        """Captures short steps of every number of sequences, the largest first: it grows the arena
        to its final size, so that later captures do not reallocate it."""
        for count in sorted({_rounded(n + 1) for n in range(self.max_sequences)}, reverse=True):
            if self._sources:
                self.record(StepBucket(count, LEAST_PAGES, LEAST_PAGES))
                self.record(StepBucket(count, SHORT_PAGES, LEAST_PAGES))
                self.record(StepBucket(count, SHORT_PAGES, SHORT_PAGES))
            else:
                self.record(StepBucket(count, LEAST_PAGES))

    def _prepare(self, bucket: StepBucket) -> tuple[Inputs, Callable[[], None]]:
        """Returns a block of the graph's own with sequences without tokens, and the step over
        them."""
        count = bucket.sequences
        layout = step_layout(count, count, bucket.pages, count, bucket.source_pages)
        inputs = Inputs.upload(layout, {}, self._place)
        step = paged_bucket(inputs, self.cache.page_size)
        rooms = [room.first(count) for room in self._rooms]
        return inputs, lambda: self._forward(inputs, step, self.cache, rooms)


def table_widths(pages: int, source_pages: int | None = None) -> tuple[int, ...]:
    """Returns the widths of the block tables, of a step and of its sources, that a captured step
    has room for."""
    if source_pages is None:
        return (_table_width(pages),)
    if pages > SHORT_PAGES:
        return _table_width(pages), _table_width(source_pages)
    if source_pages > SHORT_PAGES:
        return SHORT_PAGES, _table_width(source_pages)
    return SHORT_PAGES, SHORT_PAGES


def _table_width(pages: int) -> int:
    return power_of_two(max(pages, LEAST_PAGES))


def _rounded(sequences: int) -> int:
    step = SEQUENCES_STEP if sequences <= MOST_SEQUENCES else MANY_SEQUENCES_STEP
    if sequences <= SEQUENCES_STEP:
        step = 1
    return -(-sequences // step) * step

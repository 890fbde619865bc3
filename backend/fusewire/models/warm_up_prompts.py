"""Prompts that a decoder runs before the first request, so that all kernels are selected by
then."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fusewire.models.decoder_cache import DecoderCache
from fusewire.models.step_batch import StepBatch


def warm_up_prompts(
    sizes: list[int], max_length: int, max_logit_rows: int, cache: DecoderCache
) -> Iterator[StepBatch]:
    """Yields steps with these numbers of tokens, in prompts as long as the model and the cache
    allow; all of them write the same pages. Logits are computed for the last `max_logit_rows`
    tokens."""
    longest = min(max_length, cache.pages * cache.page_size)
    for tokens in sizes:
        offsets = np.append(np.arange(0, tokens, longest), tokens).astype(np.int32)
        lengths = np.diff(offsets)
        table = np.arange(-(-int(lengths.max()) // cache.page_size), dtype=np.int32)
        yield StepBatch(
            input_ids=np.zeros(tokens, np.int64),
            positions=(np.arange(tokens) - np.repeat(offsets[:-1], lengths)).astype(np.int32),
            cu_seqlens=offsets,
            context_lengths=lengths,
            block_table=np.tile(table, (lengths.size, 1)),
            logit_rows=np.arange(max(0, tokens - max_logit_rows), tokens),
        )

"""Prompts that a decoder runs before the first request, so that no request waits for a choice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fusewire.models.buckets import power_of_two
from fusewire.models.decoder_cache import DecoderCache
from fusewire.models.step_batch import StepBatch


def sizes(max_tokens: int) -> list[int]:
    """From `max_tokens` down to 2, so close that each number between is computed by the kernels of
    one of them: those of a matrix product are chosen for at least an eighth of an octave."""
    found = []
    tokens = max_tokens
    while tokens > 1:
        found.append(tokens)
        step = max(8, power_of_two(tokens) // 32)
        tokens = (tokens - 1) // step * step
    return found


def warm_up_prompts(max_tokens: int, max_length: int, cache: DecoderCache) -> Iterator[StepBatch]:
    """Steps of so many tokens, in prompts as long as the model and the cache take them; all of them
    write the same pages, and none asks for more than one row of logits."""
    longest = min(max_length, cache.pages * cache.page_size)
    for tokens in sizes(max_tokens):
        offsets = np.append(np.arange(0, tokens, longest), tokens).astype(np.int32)
        lengths = np.diff(offsets)
        table = np.arange(-(-int(lengths.max()) // cache.page_size), dtype=np.int32)
        yield StepBatch(
            input_ids=np.zeros(tokens, np.int64),
            positions=(np.arange(tokens) - np.repeat(offsets[:-1], lengths)).astype(np.int32),
            cu_seqlens=offsets,
            context_lengths=lengths,
            block_table=np.tile(table, (lengths.size, 1)),
            logit_rows=np.array([tokens - 1], np.int64),
        )

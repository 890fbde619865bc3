"""What a step's chunks are to the model, and its sources to the encoder: their tokens end to end,
with positions and pages."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fusewire.engine.generation_scheduler import Chunk, GenerationSequence, Step
from fusewire.models.seq2seq_model import SourceBatch
from fusewire.models.step_batch import SourceTable, StepBatch


def pack(step: Step) -> tuple[StepBatch, list[GenerationSequence]]:
    """The step's tokens packed, and the sequences whose next token can be drawn after it: each has
    a row of logits, or one for each of its continuations, which are forked from here."""
    ids: list[int] = []
    ends = [0]
    contexts: list[int] = []
    tables: list[array[int]] = []
    rows: list[int] = []
    sampled: list[GenerationSequence] = []
    for sequence, first, tokens in step.chunks:
        context = first + tokens
        ids += sequence.token_ids[first:context]
        ends.append(len(ids))
        contexts.append(context)
        tables.append(sequence.pages.table if sequence.pages else array("i"))
        if context == len(sequence.token_ids):
            sampled.append(sequence)
            rows += [len(ids) - 1] * sequence.continuations
    offsets = np.array(ends, np.int32)
    lengths = np.array(contexts, np.int32)
    shifts = (lengths - offsets[1:]).repeat(offsets[1:] - offsets[:-1])  # from rows to positions
    return (
        StepBatch(
            input_ids=np.array(ids, np.int64),
            positions=np.arange(len(ids), dtype=np.int32) + shifts,
            cu_seqlens=offsets,
            context_lengths=lengths,
            block_table=_block_table(tables),
            logit_rows=np.array(rows, np.int64),
            sources=_source_table(step.chunks),
        ),
        sampled,
    )


def pack_sources(step: Step) -> SourceBatch:
    """The sources that the step encodes, one or more."""
    ids: list[int] = []
    ends = [0]
    for sequence in step.encodes:
        assert sequence.source is not None
        ids += sequence.source.token_ids
        ends.append(len(ids))
    return SourceBatch(
        input_ids=np.array(ids, np.int64),
        cu_seqlens=np.array(ends, np.int32),
        block_table=_block_table(_source_pages(step.encodes)),
    )


def _source_table(chunks: list[Chunk]) -> SourceTable | None:
    """None of a model without an encoder, none of whose sequences has a source."""
    if chunks[0].sequence.source is None:
        return None
    sequences = [chunk.sequence for chunk in chunks]
    lengths = [0 if each.source is None else len(each.source) for each in sequences]
    return SourceTable(np.array(lengths, np.int32), _block_table(_source_pages(sequences)))


def _source_pages(sequences: Iterable[GenerationSequence]) -> list[array[int]]:
    found = [None if each.pages is None else each.pages.source for each in sequences]
    return [array("i") if pages is None else pages.table for pages in found]


def _block_table(tables: list[array[int]]) -> NDArray[np.int32]:
    """A row for each sequence, padded with page 0."""
    nbytes = max(map(len, tables)) * array("i").itemsize
    rows = b"".join([table.tobytes().ljust(nbytes, b"\0") for table in tables])
    return np.frombuffer(rows, np.int32).reshape(len(tables), -1)

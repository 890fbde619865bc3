"""What a step's chunks are to the model, and its sources to the encoder: their tokens end to end,
with positions and pages."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire.engine.beam_rows import BeamRowsOf, StepRows, offsets_of
from fusewire.engine.decode_rows import Decodes
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.generation_step import Chunk, Step
from fusewire.kernels import Tensor
from fusewire.models.seq2seq_model import SourceBatch
from fusewire.models.step_batch import SourceTable, StepBatch


class Packed(NamedTuple):
    """A step as the model takes it, and whose rows of logits come out of it: first of sequences
    whose next token can be drawn, one each, or one for each of its continuations, which are forked
    from here; then of groups, one for each of their beams, or for their prompt's last token."""

    batch: StepBatch
    sampled: list[GenerationSequence]
    groups: list[GenerationSequence]


def pack_ahead(step: Step, tokens: Tensor) -> Packed:
    """Packs a step of decodes, whose `tokens` nobody has read, and of prompts: zeros are in the
    place of the tokens."""
    rows = step.decodes.rows
    batch = _decodes(step.decodes, np.zeros(len(rows.sequences), np.int64))
    if not step.prompts:
        return Packed(replace(batch, sampled=tokens, rows=rows), [*rows.sequences], [])
    part, ready, _ = _prompts(step.prompts)
    batch = replace(_end_to_end([batch, part]), sampled=tokens)
    return Packed(batch, [*rows.sequences, *ready], [])


def pack_forked(
    rows: StepRows, counts: NDArray[np.int32], tokens: Tensor, block_table: Tensor
) -> StepBatch:
    """The batch of the step after one of these rows, with counts[i] beams of sequence i, whose
    tokens and block table are on the device alone."""
    positions = (rows.positions + 1).repeat(counts)
    unread = np.zeros(len(positions), np.int64)
    table = np.zeros(block_table.shape, np.int32)
    batch = _one_each(unread, positions, table, sources_of(rows, counts))
    return replace(batch, sampled=tokens, forked=block_table, rows=rows)


def pack_behind(batch: StepBatch, tokens: Tensor, block_table: Tensor) -> StepBatch:
    """The batch of the step after one of `pack_forked`, with the same rows."""
    return StepBatch(
        input_ids=batch.input_ids,
        positions=batch.context_lengths,
        cu_seqlens=batch.cu_seqlens,
        context_lengths=batch.context_lengths + 1,
        block_table=batch.block_table,
        logit_rows=batch.logit_rows,
        sources=batch.sources,
        sampled=tokens,
        forked=block_table,
        rows=batch.rows,
    )


def pack(step: Step) -> Packed:
    """Packs a step: the tokens of decodes, of prompts and of beams, in this order."""
    parts: list[StepBatch] = []
    sampled = [*step.decodes.rows.sequences]
    groups: list[GenerationSequence] = []
    if sampled:
        tokens = np.array([each.token_ids[-1] for each in sampled], np.int64)
        parts.append(_decodes(step.decodes, tokens))
    if step.prompts:
        part, ready, groups = _prompts(step.prompts)
        parts.append(part)
        sampled += ready
    if step.groups:
        parts.append(_beams(step.groups))
    return Packed(_end_to_end(parts), sampled, groups + step.groups)


def _decodes(decodes: Decodes, tokens: NDArray[np.int64]) -> StepBatch:
    rows, positions, block_table = decodes
    if rows.sources is None:
        rows.sources = _source_table(rows.sequences)
    return _one_each(tokens, positions, block_table, rows.sources)


def _prompts(chunks: list[Chunk]) -> Packed:
    ids: list[int] = []
    ends = [0]
    contexts: list[int] = []
    tables: list[array[int]] = []
    rows: list[int] = []
    sampled: list[GenerationSequence] = []
    groups: list[GenerationSequence] = []
    group_rows: list[int] = []
    for sequence, first, tokens in chunks:
        context = first + tokens
        ids += sequence.token_ids[first:context]
        ends.append(len(ids))
        contexts.append(context)
        tables.append(sequence.pages.table if sequence.pages else array("i"))
        if context == len(sequence.token_ids) and sequence.search is None:
            if sequence.beams:
                groups.append(sequence)
                group_rows.append(len(ids) - 1)
                continue
            sampled.append(sequence)
            rows += [len(ids) - 1] * sequence.continuations
    offsets = np.array(ends, np.int32)
    lengths = np.array(contexts, np.int32)
    shifts = (lengths - offsets[1:]).repeat(offsets[1:] - offsets[:-1])  # from rows to positions
    batch = StepBatch(
        # It takes half the time that numpy takes for a list.
        input_ids=np.frombuffer(array("q", ids), np.int64),
        positions=np.arange(len(ids), dtype=np.int32) + shifts,
        cu_seqlens=offsets,
        context_lengths=lengths,
        block_table=_block_table(tables),
        logit_rows=np.array(rows + group_rows, np.int64),
        sources=_source_table([chunk.sequence for chunk in chunks]),
    )
    return Packed(batch, sampled, groups)


def _beams(groups: list[GenerationSequence]) -> StepBatch:
    """The beams of groups as sequences of one token each."""
    first = groups[0].rows
    if isinstance(first, BeamRowsOf) and first.step.are_of(groups):
        return _beams_together(first.step)
    rows = [group.rows for group in groups if group.rows is not None]
    counts = np.array([each.tokens.size for each in rows], np.int32)
    return _one_each(
        np.concatenate([each.tokens for each in rows]),
        np.array([each.position for each in rows], np.int32).repeat(counts),
        _joined([each.block_table for each in rows]),
        _repeated(_source_table(groups), counts),
    )


def _beams_together(step: StepRows) -> StepBatch:
    """As `_beams`, of groups that are, in this order, all that took the last step together."""
    counts = step.counts
    sources = sources_of(step, counts)
    return _one_each(step.tokens, step.positions.repeat(counts), step.block_table, sources)


def sources_of(step: StepRows, counts: NDArray[np.int32]) -> SourceTable | None:
    """The sources of rows, counts[i] of sequence i; None without an encoder."""
    made = step.sources
    if made is None or not (made[0] is counts or np.array_equal(made[0], counts)):
        made = counts, _repeated(_source_table(step.sequences), counts)
    step.sources = counts, made[1]
    sources: SourceTable | None = made[1]
    return sources


def _one_each(
    tokens: NDArray[np.int64],
    positions: NDArray[np.int32],
    block_table: NDArray[np.int32],
    sources: SourceTable | None,
) -> StepBatch:
    """A batch of sequences of one token each."""
    rows_and_end = np.arange(tokens.size + 1)
    return StepBatch(
        input_ids=tokens,
        positions=positions,
        cu_seqlens=rows_and_end.astype(np.int32),
        context_lengths=positions + 1,
        block_table=block_table,
        logit_rows=rows_and_end[:-1],
        sources=sources,
    )


def _end_to_end(parts: list[StepBatch]) -> StepBatch:
    """One batch of one part or more."""
    if len(parts) == 1:
        return parts[0]
    begins = [0, *accumulate(part.tokens for part in parts)]
    sources = [part.sources for part in parts if part.sources is not None]
    return StepBatch(
        input_ids=np.concatenate([part.input_ids for part in parts]),
        positions=np.concatenate([part.positions for part in parts]),
        cu_seqlens=np.concatenate(
            [
                np.zeros(1, np.int32),
                *(part.cu_seqlens[1:] + begin for part, begin in zip(parts, begins, strict=False)),
            ],
            dtype=np.int32,
        ),
        context_lengths=np.concatenate([part.context_lengths for part in parts]),
        block_table=_joined([part.block_table for part in parts]),
        logit_rows=np.concatenate(
            [part.logit_rows + begin for part, begin in zip(parts, begins, strict=False)]
        ),
        sources=SourceTable(
            np.concatenate([each.lengths for each in sources]),
            _joined([each.block_table for each in sources]),
        )
        if sources
        else None,
    )


def _repeated(sources: SourceTable | None, counts: NDArray[np.int32]) -> SourceTable | None:
    """The sources with counts[i] rows for row i: one for each of a group's beams."""
    if sources is None:
        return None
    return SourceTable(sources.lengths.repeat(counts), sources.block_table.repeat(counts, axis=0))


def pack_sources(step: Step) -> SourceBatch:
    """The sources that the step encodes, one or more."""
    sources = [pages.source for pages in step.sources]
    features = [source.features for source in sources if source.features is not None]
    return SourceBatch(
        input_ids=np.frombuffer(b"".join([source.packed for source in sources]), np.int64),
        cu_seqlens=offsets_of(np.array([len(source) for source in sources], np.int32)),
        block_table=_block_table([pages.table for pages in step.sources]),
        features=np.stack(features) if features else None,
    )


def _source_table(sequences: Sequence[GenerationSequence]) -> SourceTable | None:
    """The sources of sequences; None without any sequences, and for a model without an encoder."""
    if not sequences or sequences[0].source is None:
        return None
    lengths = [0 if each.source is None else len(each.source) for each in sequences]
    return SourceTable(np.array(lengths, np.int32), _block_table(_source_pages(sequences)))


def _source_pages(sequences: Iterable[GenerationSequence]) -> list[array[int]]:
    found = [None if each.pages is None else each.pages.source for each in sequences]
    return [array("i") if pages is None else pages.table for pages in found]


def _block_table(tables: list[array[int]]) -> NDArray[np.int32]:
    """A row for each sequence, padded with page 0."""
    nbytes = max(map(len, tables), default=0) * array("i").itemsize
    rows = b"".join([table.tobytes().ljust(nbytes, b"\0") for table in tables])
    return np.frombuffer(rows, np.int32).reshape(len(tables), nbytes // array("i").itemsize)


def _joined(tables: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """The rows of all, padded with page 0."""
    width = max(table.shape[1] for table in tables)
    joined = np.zeros((sum(map(len, tables)), width), np.int32)
    begin = 0
    for table in tables:
        joined[begin : begin + len(table), : table.shape[1]] = table
        begin += len(table)
    return joined

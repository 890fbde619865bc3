"""One step of generation: the new tokens of sequences whose keys and values are in a cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.inputs import Inputs, Layout, host
from fusewire.placement import Placement


@dataclass(frozen=True)
class StepBatch:
    """New tokens of sequences, packed one after the other.

    Sequence i has the rows cu_seqlens[i]:cu_seqlens[i + 1], one or more, which are the last of its
    context_lengths[i] positions; those before are in the cache. Its positions p * page_size on lie
    in page block_table[i, p]; entries beyond its context are not read.
    """

    input_ids: NDArray[np.int64]  # [tokens]
    positions: NDArray[np.int32]  # [tokens]
    cu_seqlens: NDArray[np.int32]  # [sequences + 1]
    context_lengths: NDArray[np.int32]  # [sequences], the new tokens included
    block_table: NDArray[np.int32]  # [sequences, pages of the longest]
    logit_rows: NDArray[np.int64]  # rows whose logits are wanted, none or more

    @property
    def tokens(self) -> int:
        return self.input_ids.size

    @property
    def sequences(self) -> int:
        return self.context_lengths.size


def step_layout(tokens: int, sequences: int, pages: int, logit_rows: int) -> Layout:
    """Of a StepBatch whose longest sequence has so many pages."""
    return Layout(
        input_ids=(tokens,),
        logit_rows=(logit_rows,),
        positions=(tokens,),
        cu_seqlens=(sequences + 1,),
        context_lengths=(sequences,),
        block_table=(sequences, pages),
    )


def upload(step: StepBatch, place: Placement) -> Inputs:
    layout = step_layout(
        step.tokens, step.sequences, step.block_table.shape[1], step.logit_rows.size
    )
    return Inputs.upload(layout, vars(step), place)


def paged(inputs: Inputs, step: StepBatch, page_size: int) -> kernels.PagedBatch:
    """The step that was uploaded."""
    return kernels.PagedBatch(
        inputs.sequences(step.cu_seqlens),
        host(step.context_lengths),
        host(step.block_table),
        page_size,
        inputs["context_lengths"],
        inputs["block_table"],
    )


def paged_bucket(inputs: Inputs, page_size: int) -> kernels.PagedBatch:
    """Any step of at most one token a sequence that is ever written into the inputs' block."""
    tokens, room = inputs["input_ids"].shape[0], inputs["block_table"].shape[1] * page_size
    return kernels.PagedBatch.bucket(
        kernels.SequenceBatch.bucket(inputs["cu_seqlens"], tokens, 1),
        inputs["context_lengths"],
        inputs["block_table"],
        page_size,
        room,
    )

"""One step of generation: the new tokens of sequences whose keys and values are in a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.inputs import Inputs, Layout, host
from fusewire.placement import Placement


@dataclass(frozen=True)
class SourceTable:
    """The page table of each sequence's source, as `encode` stored it: positions from p * page_size
    on of source i are in page block_table[i, p]; further entries are not read. Sequences may share
    a source."""

    lengths: NDArray[np.int32]  # [sequences], 1 or more
    block_table: NDArray[np.int32]  # [sequences, pages of the longest]


@dataclass(frozen=True)
class StepBatch:
    """New tokens of sequences, packed one after another.

    Sequence i has the rows cu_seqlens[i]:cu_seqlens[i + 1], one or more, which are the last of its
    context_lengths[i] positions; the earlier ones are in the cache. Its positions from p *
    page_size on are in page block_table[i, p]; entries beyond its context are not read.
    """

    input_ids: NDArray[np.int64]  # [tokens]
    positions: NDArray[np.int32]  # [tokens]
    cu_seqlens: NDArray[np.int32]  # [sequences + 1]
    context_lengths: NDArray[np.int32]  # [sequences], the new tokens included
    block_table: NDArray[np.int32]  # [sequences, pages of the longest]
    logit_rows: NDArray[np.int64]  # rows whose logits are wanted, none or more
    sources: SourceTable | None = None  # of an encoder-decoder model
    # The ids of the first tokens if they are only on the device; their input_ids are ignored then.
    # An id outside of the vocabulary, such as that of a row without valid logits, makes the row's
    # logits NaN.
    sampled: kernels.Tensor | None = None
    # The block table if it is only on the device, with the shape of block_table.
    forked: kernels.Tensor | None = None
    # Steps with the same object have the same sequences of one token each, with the same sources,
    # and their ids on the device.
    rows: object | None = None

    @property
    def tokens(self) -> int:
        return self.input_ids.size

    @property
    def sequences(self) -> int:
        return self.context_lengths.size

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that `step_layout` has room for."""
        arrays = {**vars(self)}
        for name in ("sources", "sampled", "forked", "rows"):
            del arrays[name]
        if self.sources is not None:
            arrays["source_lengths"] = self.sources.lengths
            arrays["source_table"] = self.sources.block_table
        return arrays

    @property
    def there(self) -> dict[str, kernels.Tensor]:
        """The arrays that are on the device."""
        found = {"input_ids": self.sampled, "block_table": self.forked}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def with_table(self, place: Placement) -> StepBatch:
        """Returns the step with the block table on the host; synchronises if it is only on the
        device."""
        if self.forked is None:
            return self
        return replace(self, block_table=place.numpy(self.forked))


class PagedStep(NamedTuple):
    """What attention reads: the step's own pages, and those of its sources."""

    batch: kernels.PagedBatch
    sources: kernels.PagedBatch | None


def step_layout(
    tokens: int, sequences: int, pages: int, logit_rows: int, source_pages: int = 0
) -> Layout:
    """Returns the layout of a StepBatch whose longest sequence has `pages`, and its longest source
    `source_pages`; 0: it has no sources."""
    sources = {"source_lengths": (sequences,), "source_table": (sequences, source_pages)}
    return Layout(
        input_ids=(tokens,),
        logit_rows=(logit_rows,),
        cu_seqlens=(sequences + 1,),
        # Adjacent, since steps with the same `rows` write only these.
        positions=(tokens,),
        context_lengths=(sequences,),
        block_table=(sequences, pages),
        **(sources if source_pages else {}),
    )


def upload(step: StepBatch, place: Placement) -> Inputs:
    layout = step_layout(
        step.tokens,
        step.sequences,
        step.block_table.shape[1],
        step.logit_rows.size,
        0 if step.sources is None else step.sources.block_table.shape[1],
    )
    inputs = Inputs.upload(layout, step.arrays, place)
    for name, tensor in step.there.items():
        inputs.write(name, tensor, place)
    return inputs


def paged(inputs: Inputs, step: StepBatch, page_size: int) -> PagedStep:
    """Returns the pages of a step that `upload` uploaded."""
    batch = inputs.sequences(step.cu_seqlens)

    def pages(lengths: str, table: str) -> kernels.PagedBatch:
        on_host = host(arrays[lengths]), host(arrays[table])
        return kernels.PagedBatch(batch, *on_host, page_size, inputs[lengths], inputs[table])

    arrays = step.arrays
    return PagedStep(
        pages("context_lengths", "block_table"),
        None if step.sources is None else pages("source_lengths", "source_table"),
    )


def paged_bucket(inputs: Inputs, page_size: int) -> PagedStep:
    """Returns a PagedStep that is valid for every step of at most one token per sequence that is
    written to the inputs' block later."""
    tokens = inputs["input_ids"].shape[0]
    batch = kernels.SequenceBatch.bucket(inputs["cu_seqlens"], tokens, 1)

    def pages(lengths: str, table: str) -> kernels.PagedBatch:
        room = inputs[table].shape[1] * page_size
        return kernels.PagedBatch.bucket(batch, inputs[lengths], inputs[table], page_size, room)

    return PagedStep(
        pages("context_lengths", "block_table"),
        pages("source_lengths", "source_table") if "source_table" in inputs else None,
    )

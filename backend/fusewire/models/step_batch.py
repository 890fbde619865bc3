"""One step of generation: the new tokens of sequences whose keys and values are in a cache, and
the block of memory in which all of it crosses to the device in one copy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.placement import Placement

_ALIGNMENT = 16  # bytes
_DTYPES = {
    "input_ids": "int64",
    "logit_rows": "int64",
    "positions": "int32",
    "cu_seqlens": "int32",
    "context_lengths": "int32",
    "block_table": "int32",
}


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


@dataclass(frozen=True)
class StepLayout:
    """Where the arrays of a step lie in its block of memory: one of so many tokens and sequences,
    whose longest sequence has so many pages."""

    tokens: int
    sequences: int
    pages: int
    logit_rows: int

    @cached_property
    def block(self) -> np.dtype[np.void]:
        """The block, with the arrays of a StepBatch as its fields."""
        shapes = {
            "input_ids": (self.tokens,),
            "logit_rows": (self.logit_rows,),
            "positions": (self.tokens,),
            "cu_seqlens": (self.sequences + 1,),
            "context_lengths": (self.sequences,),
            "block_table": (self.sequences, self.pages),
        }
        formats = [np.dtype((_DTYPES[name], shape)) for name, shape in shapes.items()]
        ends = [*accumulate((_aligned(format.itemsize) for format in formats), initial=0)]
        return np.dtype(
            {"names": [*shapes], "formats": formats, "offsets": ends[:-1], "itemsize": ends[-1]}
        )

    def pack(self, step: StepBatch) -> NDArray[np.uint8]:
        """The block for a step that may be smaller: tokens beyond it are id 0, and sequences beyond
        it have none."""
        block = np.zeros(1, self.block)
        tokens, sequences = step.tokens, step.sequences
        block["input_ids"][0, :tokens] = step.input_ids
        block["logit_rows"][0, : step.logit_rows.size] = step.logit_rows
        block["positions"][0, :tokens] = step.positions
        block["cu_seqlens"][0, : sequences + 1] = step.cu_seqlens
        block["cu_seqlens"][0, sequences + 1 :] = tokens
        block["context_lengths"][0, :sequences] = step.context_lengths
        block["block_table"][0, :sequences, : step.block_table.shape[1]] = step.block_table
        return block.view(np.uint8)


class StepInput:
    """The arrays of a block on the device, as tensors."""

    def __init__(self, layout: StepLayout, block: kernels.Tensor) -> None:
        self.layout = layout
        self.block = block
        there = {
            name: block.section(begin, list(format.shape), _DTYPES[name])
            for name, (format, begin, *_) in (layout.block.fields or {}).items()
        }
        self.ids = there["input_ids"]
        self.positions = there["positions"]
        self.logit_rows = there["logit_rows"]
        self._offsets = there["cu_seqlens"]
        self._contexts = there["context_lengths"]
        self._table = there["block_table"]

    @classmethod
    def upload(cls, step: StepBatch, place: Placement) -> StepInput:
        layout = StepLayout(
            step.tokens, step.sequences, step.block_table.shape[1], step.logit_rows.size
        )
        return cls(layout, place.exact(layout.pack(step), np.uint8))

    def batch(self, step: StepBatch, page_size: int) -> kernels.PagedBatch:
        """The step that was packed, for a layout without room to spare."""
        return kernels.PagedBatch(
            kernels.SequenceBatch(_host(step.cu_seqlens), self._offsets),
            _host(step.context_lengths),
            _host(step.block_table),
            page_size,
            self._contexts,
            self._table,
        )

    def bucket(self, page_size: int) -> kernels.PagedBatch:
        """Any step of at most one token a sequence that is ever packed into the block."""
        layout = self.layout
        offsets = kernels.SequenceBatch.bucket(self._offsets, layout.tokens, 1)
        room = layout.pages * page_size
        return kernels.PagedBatch.bucket(offsets, self._contexts, self._table, page_size, room)


def _host(array: NDArray[np.int32]) -> kernels.Tensor:
    return kernels.Tensor.from_numpy(np.ascontiguousarray(array, np.int32))


def _aligned(nbytes: int) -> int:
    return (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT

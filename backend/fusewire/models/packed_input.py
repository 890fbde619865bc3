"""What a forward reads of a batch, as one block of memory that crosses to the device in one copy.

The block holds, each section beginning on a multiple of 16 bytes: ids int64 [tokens], positions
int32 [tokens], types int32 [tokens], offsets int32 [sequences + 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.placement import Placement


@dataclass(frozen=True)
class Layout:
    """Where the sections of a block for so many tokens and sequences begin, in bytes."""

    tokens: int
    sequences: int

    @property
    def positions(self) -> int:
        return _aligned(8 * self.tokens)

    @property
    def types(self) -> int:
        return self.positions + _aligned(4 * self.tokens)

    @property
    def offsets(self) -> int:
        return self.types + _aligned(4 * self.tokens)

    @property
    def nbytes(self) -> int:
        return self.offsets + _aligned(4 * (self.sequences + 1))


def pack(
    layout: Layout,
    ids: NDArray[np.int64],
    positions: NDArray[np.int32],
    types: NDArray[np.int32] | None,
    cu_seqlens: NDArray[np.int32],
) -> NDArray[np.uint8]:
    """The block for a batch that may be smaller than the layout: tokens beyond it are id 0, and
    sequences beyond it are empty."""
    block = np.zeros(layout.nbytes, np.uint8)
    block[: 8 * ids.size].view(np.int64)[:] = ids
    _section(block, layout.positions, ids.size)[:] = positions
    if types is not None:
        _section(block, layout.types, ids.size)[:] = types
    offsets = _section(block, layout.offsets, layout.sequences + 1)
    offsets[: cu_seqlens.size] = cu_seqlens
    offsets[cu_seqlens.size :] = cu_seqlens[-1]
    return block


class PackedInput:
    """The sections of a block on the device, as tensors."""

    def __init__(self, layout: Layout, block: kernels.Tensor) -> None:
        self.layout = layout
        self.block = block
        self.ids = block.section(0, [layout.tokens], "int64")
        self.positions = block.section(layout.positions, [layout.tokens], "int32")
        self.types = block.section(layout.types, [layout.tokens], "int32")
        self.offsets = block.section(layout.offsets, [layout.sequences + 1], "int32")

    @classmethod
    def upload(cls, layout: Layout, block: NDArray[np.uint8], place: Placement) -> PackedInput:
        return cls(layout, place.exact(block, np.uint8))

    def batch(self, cu_seqlens: NDArray[np.int32]) -> kernels.SequenceBatch:
        """The sequences, for kernels that read their offsets from the block; `cu_seqlens` is what
        was packed, for a layout without room to spare."""
        return kernels.SequenceBatch(kernels.Tensor.from_numpy(cu_seqlens), self.offsets)


def _section(block: NDArray[np.uint8], begin: int, count: int) -> NDArray[np.int32]:
    return block[begin : begin + 4 * count].view(np.int32)


def _aligned(nbytes: int) -> int:
    return (nbytes + 15) // 16 * 16

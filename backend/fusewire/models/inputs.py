"""The arrays of a batch in one block of memory, which is uploaded by a single copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.placement import Placement

_ALIGNMENT = 16  # bytes
_LONG = ("input_ids", "logit_rows")  # int64; other arrays are int32


class Layout:
    """The offsets of arrays in a block: by name, each with the largest shape that it may have."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self.places: dict[str, tuple[int, str, tuple[int, ...]]] = {}  # begin, dtype, shape
        self.nbytes = 0
        for name, shape in shapes.items():
            dtype, size = ("int64", 8) if name in _LONG else ("int32", 4)
            self.places[name] = self.nbytes, dtype, shape
            nbytes = size * math.prod(shape)
            self.nbytes += (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT

    def pack(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
        """Returns the block for arrays that may be smaller than their room, or missing. The rest is
        filled with zeros, and cu_seqlens with sequences without tokens."""
        block = np.zeros(self.nbytes, np.uint8)
        for name, array in arrays.items():
            begin, dtype, shape = self.places[name]
            room: NDArray[Any] = np.ndarray(shape, dtype, block, begin)
            room[tuple(map(slice, array.shape))] = array
            if name == "cu_seqlens":
                room[array.size :] = array[-1]
        return block


def packed_layout(tokens: int, sequences: int) -> Layout:
    """Returns the layout of packed whole sequences."""
    one_each = (tokens,)
    return Layout(
        input_ids=one_each,
        positions=one_each,
        token_type_ids=one_each,
        cu_seqlens=(sequences + 1,),
    )


class NamedTensors(Protocol):
    """The tensors of a batch that a stack reads."""

    def __getitem__(self, name: str, /) -> kernels.Tensor: ...


class Inputs:
    """The arrays of a block on the device, as tensors by name."""

    def __init__(self, layout: Layout, block: kernels.Tensor) -> None:
        self.layout = layout
        self.block = block
        self._tensors = {
            name: block.section(begin, list(shape), dtype)
            for name, (begin, dtype, shape) in layout.places.items()
        }

    @classmethod
    def upload(cls, layout: Layout, arrays: Mapping[str, NDArray[Any]], place: Placement) -> Inputs:
        return cls(layout, place.exact(layout.pack(arrays), np.uint8))

    def __getitem__(self, name: str) -> kernels.Tensor:
        return self._tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def write(self, name: str, rows: kernels.Tensor, place: Placement) -> None:
        """Copies rows on the device to the first rows of an array, which has the same width."""
        to = self.rows(name, rows.shape[0])
        assert rows.shape == to.shape
        kernels.write(to, rows, place.stream)

    def rows(self, name: str, count: int) -> kernels.Tensor:
        """Returns the first rows of an array."""
        begin, dtype, shape = self.layout.places[name]
        return self.block.section(begin, [count, *shape[1:]], dtype)

    def sequences(self, cu_seqlens: NDArray[np.int32]) -> kernels.SequenceBatch:
        """Returns a batch for kernels that read the offsets from the block. `cu_seqlens` is what
        was packed, into a layout of exactly its size."""
        return kernels.SequenceBatch(host(cu_seqlens), self["cu_seqlens"])


def host(array: NDArray[np.int32]) -> kernels.Tensor:
    return kernels.Tensor.from_numpy(np.ascontiguousarray(array, np.int32))

"""A variable of a TensorFlow checkpoint, read from its file a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.weights.safetensors_writer import size_bytes

BLOCK_BYTES = 8 << 20

# (axis, start, stop) -> this range of a variable along the axis.
Read = Callable[[int, int, int], NDArray[Any]]


@dataclass(frozen=True)
class Variable:
    """`dtype`: safetensors' name of the type. `read`: returns values in any byte order; bfloat16 as
    its bits, uint16; a scalar as an array of one element. `check`: raises CheckpointError if the
    checksum is wrong."""

    dtype: str
    shape: tuple[int, ...]
    read: Read
    check: Callable[[], None] = lambda: None


Named = tuple[str, Variable]


@dataclass(frozen=True)
class Tensor:
    """A variable in Hugging Face's layout: [outputs, inputs] if `transposed`, without the first
    axis (of size 1) if `squeezed`."""

    variable: Variable
    transposed: bool = False
    squeezed: bool = False

    @property
    def dtype(self) -> str:
        return self.variable.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.variable.shape[self.squeezed :]
        return shape[::-1] if self.transposed else shape

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yields the values in order, some rows at a time, little-endian and contiguous."""
        variable = self.variable
        shape = variable.shape or (1,)
        axis = int(self.squeezed) + int(self.transposed)
        rows = shape[axis] if len(shape) > axis else 1
        row_bytes = max(1, size_bytes(variable) // max(1, rows))
        step = max(1, BLOCK_BYTES // row_bytes)
        for start in range(0, rows, step):
            block = variable.read(axis, start, min(rows, start + step))
            if self.squeezed:
                block = block[0]
            if self.transposed:
                block = block.T
            yield np.ascontiguousarray(block, block.dtype.newbyteorder("<"))


def part_of(array: Any) -> Read:
    """Returns the reader of an array, or of an object that is indexed like one."""
    return lambda axis, start, stop: array[(slice(None),) * axis + (slice(start, stop),)]

"""A row of the table of ops, and the memory layout of its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import torch
from fusewire import kernels as k
from fusewire.placement import Placement
from fusewire.precision import Precision

from tests.places import as_torch, settle

Arrays = dict[str, np.ndarray]
Tensors = dict[str, torch.Tensor]

# Contiguous rows; strided rows with NaN between them; contiguous rows at an address that is not
# aligned for vector access.
LAYOUTS = ("dense", "strided", "unaligned")


@contextmanager
def another_number_of_threads() -> Iterator[None]:
    """Sets a number of CPU threads that differs from the current one."""
    threads = k.num_threads()
    k.set_num_threads(1 if threads > 1 else 2)
    try:
        yield
    finally:
        k.set_num_threads(threads)


@dataclass(frozen=True)
class Operands:
    """Creates the inputs of an op and reads its outputs, in one place and one layout."""

    place: Placement
    layout: str

    def rows(self, array: np.ndarray) -> k.Tensor:
        if self.layout == "dense":
            return self.place.floats(array)
        tensor = self.room(*array.shape)
        if array.size:
            as_torch(tensor, self.place).copy_(torch.from_numpy(array))
            settle(self.place)
        return tensor

    def room(self, rows: int, cols: int) -> k.Tensor:
        """Returns a matrix to write to. It holds NaN, so that elements that were not written, and
        reads between the rows, are detected."""
        if self.layout == "dense":
            return self.place.floats(np.full((rows, cols), np.nan, np.float32))
        if self.layout == "strided":
            tensor = k.matrix(rows, cols, self.place.dtype, stream=self.place.stream)
            whole = as_torch(tensor, self.place) if rows * cols else torch.empty(0)
            if whole.numel():
                span = (rows - 1) * whole.stride(0) + cols
                whole = whole.as_strided((span,), (1,))
        else:
            memory = self.place.empty(rows * cols + 1)
            item = memory.nbytes // (rows * cols + 1)
            tensor = memory.section(item, [rows, cols], self.place.dtype)
            whole = as_torch(memory, self.place)
        whole.fill_(np.nan)
        settle(self.place)
        return tensor

    def of_parameters(self) -> Operands:
        """Returns the same in fp32, the dtype of parameters' gradients in every precision."""
        place = copy(self.place)
        place.precision = Precision.of(place.device, "float32")
        return Operands(place, self.layout)

    def result(self, call: Callable, shape: tuple[int, int], *arguments) -> np.ndarray:
        out = self.room(*shape)
        call(out, *arguments, stream=self.place.stream)
        if self.layout == "strided":
            self._expect_untouched_gaps(out)
        return self.read(out)

    def _expect_untouched_gaps(self, out: k.Tensor) -> None:
        """Asserts that nothing was written between the rows, where other data may be."""
        (rows, cols), whole = out.shape, as_torch(out, self.place)
        if rows > 1 and cols:
            gap = whole.stride(0) - cols
            gaps = whole.as_strided((rows - 1, gap), whole.stride(), cols)
            assert bool(gaps.isnan().all()), "an op wrote between the rows"

    def read(self, tensor: k.Tensor) -> np.ndarray:
        if self.layout != "strided":
            return self.place.numpy(tensor).copy()
        if 0 in tensor.shape:
            return np.empty(tensor.shape, np.float32)
        return as_torch(tensor, self.place).float().cpu().numpy().copy()

    def floats(self, array: np.ndarray) -> k.Tensor:
        return self.place.floats(array)

    def fp32(self, array: np.ndarray) -> k.Tensor:
        return self.place.exact(array, np.float32)

    def int64(self, array: np.ndarray) -> k.Tensor:
        return self.place.exact(array, np.int64)

    def int32(self, array: np.ndarray) -> k.Tensor:
        return self.place.exact(array, np.int32)

    def sequences(self, lengths: tuple[int, ...]) -> k.SequenceBatch:
        return self.place.sequences(np.cumsum([0, *lengths]).astype(np.int32))


@dataclass(frozen=True)
class Case:
    """Cases are equal where their wanted results are: `expected` is computed once for both."""

    shapes: list[tuple] = field(compare=False)
    make: Callable[[np.random.Generator, tuple], Arrays]
    ours: Callable[[Operands, Arrays, tuple], np.ndarray] = field(compare=False)
    reference: Callable[[Tensors, tuple], torch.Tensor]
    exact: bool = False  # for integers and copies
    fp32: tuple[str, ...] = ()  # inputs that are fp32 in every precision
    training: bool = False  # for backward passes and optimizers
    # Sizes that take too long on a CPU.
    gpu_shapes: tuple[tuple, ...] = field(default=(), compare=False)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


MATRICES = [(1, 1), (1, 7), (5, 16), (3, 33), (17, 384), (9, 769), (130, 1024), (2, 30522), (0, 8)]
LARGE_MATRICES = ((2000, 768), (613, 1024), (70, 4096), (5, 16384))

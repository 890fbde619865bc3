"""One step of generation: the new tokens of sequences whose keys and values are in a cache, and
the block of memory in which all of it crosses to the device in one copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.placement import Placement

_ALIGNMENT = 16  # bytes


@dataclass(frozen=True)
class StepBatch:
    """New tokens of sequences, packed one behind the other.

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


class StepInput:
    """A StepBatch's arrays on the device."""

    def __init__(self, step: StepBatch, page_size: int, place: Placement) -> None:
        arrays: dict[str, tuple[NDArray[Any], str]] = {
            "input_ids": (step.input_ids, "int64"),
            "logit_rows": (step.logit_rows, "int64"),
            "positions": (step.positions, "int32"),
            "cu_seqlens": (step.cu_seqlens, "int32"),
            "context_lengths": (step.context_lengths, "int32"),
            "block_table": (step.block_table, "int32"),
        }
        begins, end = [], 0
        for array, dtype in arrays.values():
            begins.append(end)
            nbytes = array.size * np.dtype(dtype).itemsize
            end += (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        host = np.zeros(end, np.uint8)
        for begin, (array, dtype) in zip(begins, arrays.values(), strict=True):
            section = host[begin : begin + array.size * np.dtype(dtype).itemsize].view(dtype)
            section[:] = array.reshape(-1)
        block = place.exact(host, np.uint8)

        def there(index: int, name: str) -> kernels.Tensor:
            array, dtype = arrays[name]
            return block.section(begins[index], array.shape, dtype)

        sections = {name: there(index, name) for index, name in enumerate(arrays)}
        self.ids = sections["input_ids"]
        self.positions = sections["positions"]
        self.logit_rows = sections["logit_rows"]
        self.batch = kernels.PagedBatch(
            kernels.SequenceBatch(_host(step.cu_seqlens), sections["cu_seqlens"]),
            _host(step.context_lengths),
            _host(step.block_table),
            page_size,
            sections["context_lengths"],
            sections["block_table"],
        )


def _host(array: NDArray[Any]) -> kernels.Tensor:
    return kernels.Tensor.from_numpy(np.ascontiguousarray(array, np.int32))

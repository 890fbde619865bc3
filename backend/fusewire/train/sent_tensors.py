"""Tensors in one allocation on a device, written by one copy from the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 256  # bytes, as in torch's allocator


class Kind(NamedTuple):
    shape: Sequence[int]
    dtype: torch.dtype


class SentTensors:
    """`tensors`: tensors of these kinds, by name. On a GPU a separate copy of each would cost more
    than the transfer of the few elements of a batch."""

    def __init__(self, kinds: Mapping[str, Kind], device: torch.device) -> None:
        self._kinds = kinds
        self._begins: dict[str, int] = {}
        end = 0
        for name, kind in kinds.items():
            self._begins[name] = end
            end += -(-prod(kind.shape) * kind.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._memory = torch.empty(end, dtype=torch.uint8, device=device)
        self.tensors = self._in(self._memory)

    @contextmanager
    def written(self) -> Iterator[dict[str, Tensor]]:
        """The same tensors on the host, all of which have to be written: they are sent when the
        context ends, without a synchronisation; torch keeps the pinned memory until it was read."""
        if self._memory.device.type == "cpu":
            yield self.tensors
            return
        memory = torch.empty(len(self._memory), dtype=torch.uint8, pin_memory=True)
        yield self._in(memory)
        self._memory.copy_(memory, non_blocking=True)

    def _in(self, memory: Tensor) -> dict[str, Tensor]:
        found = {}
        for name, (shape, dtype) in self._kinds.items():
            begin = self._begins[name]
            flat = memory[begin : begin + prod(shape) * dtype.itemsize]
            found[name] = flat.view(dtype).view(*shape)
        return found

"""Memory that recordings share: they are replayed one at a time, and keep nothing in it between
replays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fusewire.kernels import training


class RecordedMemory:
    """`blocks`: memory of what layers save for their backwards. `pool`: torch's handle of what it
    allocates in recordings; None on a CPU, where nothing is recorded.

    A recording holds addresses, so memory that is too small for one cannot grow under the others:
    they are recorded again in larger memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.blocks = training.TapeBlocks()
        self._largest: dict[str, int] = {}
        self._begin()

    @property
    def moved(self) -> bool:
        """Whether the recordings hold addresses of memory that was freed."""
        return self.blocks.generation != self._generation

    def has_room_for(self, sizes: Mapping[str, int]) -> bool:
        """Whether some recording had a size at least as large for each of `sizes`."""
        return all(size <= self._largest.get(name, 0) for name, size in sizes.items())

    def renew(self, sizes: Mapping[str, int]) -> None:
        """Begins anew, once all recordings are forgotten. `sizes`: those of the next recording."""
        if self.moved:
            self._largest = {}
        # Unless it moved, earlier sizes count too: two buckets of which each is larger in something
        # would otherwise take turns.
        for name, size in sizes.items():
            self._largest[name] = max(size, self._largest.get(name, 0))
        self._begin()

    def _begin(self) -> None:
        # A pool cannot be used again once no graph uses it.
        self.pool: Any | None = torch.cuda.graph_pool_handle() if self._on_gpu else None
        self._generation = self.blocks.generation

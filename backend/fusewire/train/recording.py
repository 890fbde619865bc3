"""Work on a GPU that is recorded as a CUDA graph the second time, and replayed from then on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from fusewire.models.recordings import no_collection
from fusewire.train.kept import keeping

Pool = Any  # torch's handle of the memory that graphs share


class Recording:
    """`compute`: work on torch's current stream that reads and writes the same places each time,
    and waits for nothing but the first time. `pool`: None on a CPU, where nothing is recorded.
    `before` is called when it is about to be recorded."""

    def __init__(
        self,
        compute: Callable[[], torch.Tensor],
        pool: Pool | None,
        before: Callable[[], None],
    ) -> None:
        self._compute, self._pool, self._before = compute, pool, before
        self.seen = False  # what its kernels need is there
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result = torch.empty(0)
        self._memory: list[Any] = []

    @property
    def is_next_replayed(self) -> bool:
        return self._pool is not None and self.seen

    def __call__(self) -> torch.Tensor:
        if not self.is_next_replayed:
            result = self._compute()
            self.seen = True
            return result
        if self._graph is None:
            self._record()
        assert self._graph is not None
        self._graph.replay()
        return self._result.clone()

    def _record(self) -> None:
        self._before()
        graph = torch.cuda.CUDAGraph()
        with keeping() as self._memory, no_collection():
            graph.capture_begin(self._pool, capture_error_mode="relaxed")
            try:
                self._result = self._compute()
            except BaseException:
                with suppress(RuntimeError):  # of a capture that failed for what is raised here
                    graph.capture_end()
                raise
            graph.capture_end()
        self._graph = graph

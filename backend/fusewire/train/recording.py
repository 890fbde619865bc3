"""Work on a GPU that is recorded as CUDA graphs the second time, and replayed from then on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from fusewire.models.recordings import no_collection
from fusewire.train.kept import keeping

Pool = Any  # torch's handle of the memory that graphs share

# The one that is recorded now, to all threads: backward passes run in others.
_RECORDED: list[Recording] = []


def between_graphs(call: Callable[[], object]) -> None:
    """Makes a call that a graph may not hold, as those that wait for other processes, which may not
    replay what this one does. Where the work around it is recorded, every replay makes it, at this
    place, and not the recording."""
    if _RECORDED:
        _RECORDED[0].cut(call)
    else:
        call()


class Recording:
    """`compute`: work on torch's current stream that reads and writes the same places each time,
    and waits for nothing but the first time. `pool`: None on a CPU, where nothing is recorded.
    `before` is called when it is about to be recorded. One graph, or where the work has calls
    `between_graphs` several."""

    def __init__(
        self,
        compute: Callable[[], torch.Tensor],
        pool: Pool | None,
        before: Callable[[], None],
    ) -> None:
        self._compute, self._pool, self._before = compute, pool, before
        self.seen = False  # what its kernels need is there
        self._parts: list[Callable[[], object]] = []
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
        if not self._parts:
            self._parts = self._record()
        for part in self._parts:
            part()
        return self._result.clone()

    def cut(self, call: Callable[[], object]) -> None:
        """The graph ends here, another begins behind the call."""
        with torch.cuda.stream(self._stream):
            self._end()
            self._made.append(call)
            self._begin()

    def _record(self) -> list[Callable[[], object]]:
        self._before()
        self._made: list[Callable[[], object]] = []
        self._stream = torch.cuda.current_stream()
        _RECORDED.append(self)
        try:
            with keeping() as self._memory, no_collection():
                self._begin()
                try:
                    self._result = self._compute()
                except BaseException:
                    with suppress(RuntimeError):  # of a capture that failed for what is raised here
                        self._graph.capture_end()
                    raise
                self._end()
        finally:
            _RECORDED.remove(self)
        return self._made

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(self._pool, capture_error_mode="relaxed")

    def _end(self) -> None:
        with warnings.catch_warnings():  # of nothing between two calls
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            self._graph.capture_end()
        self._made.append(self._graph.replay)

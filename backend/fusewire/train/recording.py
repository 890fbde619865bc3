"""Work on a GPU that is captured as CUDA graphs the second time, and replayed from then on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress

import torch

from fusewire.models.recordings import no_collection
from fusewire.train.recorded_memory import RecordedMemory

# The recording that is being captured, if any. Global, as backward passes run in other threads.
_RECORDED: list[Recording] = []


def between_graphs(call: Callable[[], object]) -> None:
    """Makes a call that a graph may not contain, such as one that waits for other processes, which
    may not replay what this one does. While the work around it is captured, the call is not made;
    every replay makes it, at this place."""
    if _RECORDED:
        _RECORDED[0].cut(call)
    else:
        call()


class Recording:
    """`compute`: work on torch's current stream that reads and writes the same addresses each time
    and synchronises only the first time. `memory`: what all recordings of the stream share.
    `before` is called right before the capture. The result is one graph, or several where the work
    makes calls `between_graphs`."""

    def __init__(
        self,
        compute: Callable[[], torch.Tensor],
        memory: RecordedMemory,
        before: Callable[[], None],
    ) -> None:
        self._compute, self._memory, self._before = compute, memory, before
        self.seen = False  # ran once, so what its kernels need exists
        self.forget()

    @property
    def is_next_replayed(self) -> bool:
        return self._memory.pool is not None and self.seen

    @property
    def is_next_recorded(self) -> bool:
        return self.is_next_replayed and not self._parts

    def forget(self) -> None:
        """Drops what was recorded; the next call records again."""
        self._parts: list[Callable[[], object]] = []
        self._result = torch.empty(0)

    def __call__(self) -> torch.Tensor:
        if not self.is_next_replayed:
            result = self._compute()
            self.seen = True
            return result
        if not self._parts:
            self._record()
        for part in self._parts:
            part()
        return self._result.clone()

    def cut(self, call: Callable[[], object]) -> None:
        """Ends the graph here and begins another after the call."""
        with torch.cuda.stream(self._stream):
            self._end()
            self._made.append(call)
            self._begin()

    def _record(self) -> None:
        generation = None
        while generation != self._memory.blocks.generation:  # otherwise it moved while recording
            generation = self._memory.blocks.generation
            self._parts = self._captured()

    def _captured(self) -> list[Callable[[], object]]:
        self._before()
        made: list[Callable[[], object]] = []
        self._made = made
        self._stream = torch.cuda.current_stream()
        _RECORDED.append(self)
        try:
            with no_collection():
                self._begin()
                try:
                    self._result = self._compute()
                except BaseException:
                    with suppress(RuntimeError):  # the capture is invalid after the error
                        self._graph.capture_end()
                    raise
                self._end()
        finally:
            _RECORDED.remove(self)
            del self._made, self._graph  # so that they live no longer than `made`
        return made

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(self._memory.pool, capture_error_mode="relaxed")

    def _end(self) -> None:
        with warnings.catch_warnings():  # a graph between two calls may be empty
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            self._graph.capture_end()
        self._made.append(self._graph.replay)

"""Captured work (CUDA graphs) by key: a replay is a single launch instead of hundreds.

A graph holds addresses: those of its static inputs, of the weights, and of the workspace's arena.
So inputs are copied to these addresses before a replay, and all graphs are dropped when the arena
is reallocated.
"""

from __future__ import annotations

import gc
import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Generic, TypeVar
from weakref import WeakMethod

from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.inputs import Inputs
from fusewire.placement import Placement

_log = logging.getLogger(__name__)

# Each graph holds device memory of its own for its launches.
MOST_RECORDINGS = 256

Key = TypeVar("Key", bound=Hashable)
Static = TypeVar("Static")  # inputs at fixed addresses that a graph reads


class Recordings(ABC, Generic[Key, Static]):
    """The captured graphs of one model; the least recently used are evicted. `forward` is a method
    of the model."""

    def __init__(
        self, place: Placement, workspace: kernels.Workspace, forward: Callable[..., None]
    ) -> None:
        self._place = place
        # A weak reference: without a cycle the model is freed with its last user, not by the GC.
        self._model_forward = WeakMethod(forward)
        self._workspace = workspace
        self.recorded: OrderedDict[Key, tuple[Static, kernels.Graph]] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._arena = workspace.generation
        self.hits = 0
        self.misses = 0

    @abstractmethod
    def _prepare(self, key: Key) -> tuple[Static, Callable[[], None]]:
        """Returns static inputs with harmless values, and the work on them, which allocates only
        from the workspace."""

    def find(self, key: Key) -> tuple[Static, kernels.Graph] | None:
        """Returns the graph of a key. It is captured at the second request for the key, since
        capturing does not pay for a key that comes once. Returns None at the first request, and if
        capturing fails."""
        self._drop_stale()
        found = self.recorded.get(key)
        if found is not None:
            self.hits += 1
            self.recorded.move_to_end(key)
            return found
        self.misses += 1
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > 4 * MOST_RECORDINGS:
                self._seen.popitem(last=False)
            return None
        try:
            return self.record(key)
        except kernels.Error as error:
            # A device synchronisation by another library invalidates a capture, not the work.
            _log.warning("%s was not recorded: %s", key, error)
            return None

    def record(self, key: Key) -> tuple[Static, kernels.Graph]:
        """Runs the work once, which grows the arena and lets kernels be selected, then captures
        it."""
        inputs, work = self._prepare(key)
        work()
        self._drop_stale()
        with no_collection():
            graph = kernels.capture(self._place.stream, work)
        self.recorded[key] = inputs, graph
        while len(self.recorded) > MOST_RECORDINGS:
            self.recorded.popitem(last=False)
        return inputs, graph

    def _forward(self, *arguments: Any) -> None:
        forward = self._model_forward()
        assert forward is not None
        forward(*arguments)

    def _drop_stale(self) -> None:
        if self._workspace.generation != self._arena:
            self.recorded.clear()
            self._arena = self._workspace.generation


class BlockRecordings(Recordings[Key, Inputs]):
    """Captured graphs whose inputs are the arrays of a block."""

    def replay(
        self,
        key: Key,
        arrays: Mapping[str, NDArray[Any]],
        there: Mapping[str, kernels.Tensor] = MappingProxyType({}),
    ) -> Inputs | None:
        """Replays the graph of a key with these arrays, and with those of `there`, which are on the
        device. Returns the inputs that hold them; None if `find` returns None."""
        found = self.find(key)
        if found is None:
            return None
        inputs, graph = found
        self._write(inputs, arrays)
        for name, rows in there.items():
            inputs.write(name, rows, self._place)
        graph.replay(self._place.stream)
        return inputs

    def _write(self, inputs: Inputs, arrays: Mapping[str, NDArray[Any]]) -> None:
        block = kernels.Tensor.from_numpy(inputs.layout.pack(arrays))
        kernels.write(inputs.block, block, self._place.stream)


@contextmanager
def no_collection() -> Iterator[None]:
    """Disables garbage collection: objects that are freed during a capture, such as a model,
    synchronise, which invalidates it."""
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            gc.enable()

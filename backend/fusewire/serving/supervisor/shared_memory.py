"""The shared memory that a model's process gets its inputs in.

Triton's Python backend makes it larger for a large request and never smaller again; only loading
the model anew does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from fusewire.serving.supervisor import memory
from fusewire.serving.supervisor.processes import Stub

# What a load has to give back. The new process is there before the old one goes, so it should also
# be some share of what that takes for a moment.
_LEAST_BYTES = 32 << 20
_LEAST_SHARE = 1 / 8
# Calls of `due_bytes` between which it does not grow: who sent the large request may send more.
_STEADY_CALLS = 12
# Where large requests are usual, it is taken again at once.
_REST_S = 600.0


class SharedMemory:
    """Compares what processes hold with what they held first."""

    def __init__(self) -> None:
        self._first: dict[Stub, int] = {}
        self._steady: dict[str, tuple[int, int]] = {}  # model -> surplus, calls since it grew
        self._given_back: dict[str, float] = {}  # model -> when, the last time

    def due_bytes(self, model: str, stubs: Iterable[Stub]) -> int:
        """The surplus of a model's processes, when it is time to give it back; else 0."""
        stubs = set(stubs)
        ended = [stub for stub in self._first if stub.model == model and stub not in stubs]
        for stub in ended:
            del self._first[stub]
        surplus = self.surplus_bytes(stubs)
        before, calls = self._steady.get(model, (0, 0))
        calls = calls + 1 if 0 < surplus <= before else 0
        self._steady[model] = surplus, calls
        last = self._given_back.get(model)
        if calls < _STEADY_CALLS or (last is not None and time.monotonic() - last < _REST_S):
            return 0
        self._given_back[model] = time.monotonic()
        return surplus

    def surplus_bytes(self, stubs: Iterable[Stub]) -> int:
        """What loading the model of these processes anew would give back; 0: not worth it."""
        surplus = 0
        for stub in stubs:
            held = memory.resident(stub.pid)
            more = held.shared_bytes - self._first.setdefault(stub, held.shared_bytes)
            own = held.anonymous_bytes + held.file_bytes
            if more > max(_LEAST_BYTES, _LEAST_SHARE * own):
                surplus += more
        return surplus

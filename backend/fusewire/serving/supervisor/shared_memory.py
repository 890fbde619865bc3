"""The shared memory in which a model's process gets its inputs.

Triton's Python backend grows it for a large request and never shrinks it; only reloading the model
does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from fusewire.serving.supervisor import memory
from fusewire.serving.supervisor.processes import Stub

# A reload must free at least this much. The new process exists beside the old one for a moment, so
# it must also free this share of a process's own memory.
_LEAST_BYTES = 32 << 20
_LEAST_SHARE = 1 / 8
# Calls of `due_bytes` in which the surplus does not grow: a client may send more large requests.
_STEADY_CALLS = 12
# Least time between two reloads: where large requests are common, the memory grows again at once.
_REST_S = 600.0


class SharedMemory:
    """Compares the shared memory of processes with what they had first."""

    def __init__(self) -> None:
        self._first: dict[Stub, int] = {}
        self._steady: dict[str, tuple[int, int]] = {}  # model -> surplus, calls since it grew
        self._given_back: dict[str, float] = {}  # model -> time of the last reload

    def due_bytes(self, model: str, stubs: Iterable[Stub]) -> int:
        """Returns the surplus bytes of a model's processes when it is time to free them, otherwise
        0."""
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
        """Returns the bytes that reloading the model of these processes would free; 0: not worth
        it."""
        surplus = 0
        for stub in stubs:
            held = memory.resident(stub.pid)
            more = held.shared_bytes - self._first.setdefault(stub, held.shared_bytes)
            own = held.anonymous_bytes + held.file_bytes
            if more > max(_LEAST_BYTES, _LEAST_SHARE * own):
                surplus += more
        return surplus

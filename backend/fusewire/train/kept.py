"""Memory that a captured step needs for as long as it is replayed: the library's allocator does not
see replays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fusewire.kernels import training

_KEPT: ContextVar[list[training.Memory] | None] = ContextVar("kept", default=None)


@contextmanager
def keeping() -> Iterator[list[training.Memory]]:
    """Collects the memory of what stacks save for their backward passes in the context; it is not
    reused while the list exists."""
    kept: list[training.Memory] = []
    before = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(before)


def keep_memory(activations: training.Activations | None) -> None:
    """Called by stacks after each forward, with what it saved."""
    kept = _KEPT.get()
    if kept is not None and activations is not None:
        kept.append(activations.memory)

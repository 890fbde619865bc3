"""Memory that a captured step needs for as long as it is replayed: the library's allocator cannot
see replays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fusewire.kernels import training

_KEPT: ContextVar[list[training.Memory] | None] = ContextVar("kept", default=None)


@contextmanager
def keeping() -> Iterator[list[training.Memory]]:
    """What stacks save for their backwards meanwhile, in memory that stays while the list does."""
    kept: list[training.Memory] = []
    before = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(before)


def keep_memory(activations: training.Activations | None) -> None:
    """Called by stacks with what each forward saved."""
    kept = _KEPT.get()
    if kept is not None and activations is not None:
        kept.append(activations.memory)

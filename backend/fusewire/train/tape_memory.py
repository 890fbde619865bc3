"""The memory in which layers save what their backwards read: the allocator's, or that of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fusewire.kernels import training

_BLOCKS: ContextVar[training.TapeBlocks | None] = ContextVar("blocks", default=None)


@contextmanager
def saving_in(blocks: training.TapeBlocks) -> Iterator[None]:
    """Within the context layers save in these blocks."""
    before = _BLOCKS.set(blocks)
    try:
        yield
    finally:
        _BLOCKS.reset(before)


def tape_blocks() -> training.TapeBlocks | None:
    """The blocks of the context; None: layers save in the allocator's memory."""
    return _BLOCKS.get()

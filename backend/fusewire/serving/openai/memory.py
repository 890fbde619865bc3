"""Freed memory goes back to the system, where the C library is glibc."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3  # of mallopt, in <malloc.h>
_LARGE_BYTES = 1 << 17


def map_large_blocks() -> None:
    """Lets large blocks go back at once. By itself glibc does so only until the first of them is
    freed: it takes others of that size, up to 32 MiB, from its heaps."""
    _call("mallopt", _M_MMAP_THRESHOLD, _LARGE_BYTES)


def trim() -> None:
    """Gives back what is free in the heaps, of which there is one for each of several threads."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)

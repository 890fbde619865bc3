"""Returns freed memory to the system, where the C library is glibc."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3  # parameter of mallopt, in <malloc.h>
_LARGE_BYTES = 1 << 17


def map_large_blocks() -> None:
    """Makes glibc return large blocks when they are freed. By default it does so only until the
    first of them is freed: then it allocates blocks of that size, up to 32 MiB, from its heaps."""
    _call("mallopt", _M_MMAP_THRESHOLD, _LARGE_BYTES)


def trim() -> None:
    """Returns free memory of the heaps to the system. Several threads have a heap each."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)

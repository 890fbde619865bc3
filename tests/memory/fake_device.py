"""Python bindings of fake_device.h."""

from __future__ import annotations

import ctypes
from typing import NamedTuple


class Stats(NamedTuple):
    allocated_bytes: int
    reserved_bytes: int
    live_blocks: int
    segments: int
    raw_allocations: int
    raw_releases: int
    segments_adopted: int
    blocks_lent: int
    stream_waits: int
    waiting_blocks: int
    waiting_bytes: int
    given_bytes: int
    marks: int


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    handle, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
    stream, flag, count = ctypes.c_int, ctypes.c_bool, ctypes.c_uint64
    for name, result, *arguments in (
        ("open", handle, size, size),
        ("close", flag, handle),
        ("create_stream", stream, handle),
        ("destroy_stream", None, handle, stream),
        ("set_capturing", None, handle, stream, flag),
        ("advance", None, handle, stream, count),
        ("unfinished", count, handle),
        ("allocate", number, handle, stream, size, flag),
        ("use", None, handle, number, stream),
        ("free", None, handle, number),
        ("address", count, handle, number),
        ("trim", size, handle),
        ("stats", None, handle, ctypes.POINTER(count)),
        ("problem", ctypes.c_char_p, handle),
        ("become_default", None, handle),
    ):
        function = getattr(library, f"fake_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class FakeDevice:
    """Methods are the functions of fake_device.h; `problem` is checked after every call."""

    def __init__(self, library: ctypes.CDLL, capacity: int, cap: int = 0) -> None:
        self._library = library
        self._handle = library.fake_open(capacity, cap)

    def __getattr__(self, name: str):
        function = getattr(self._library, f"fake_{name}")

        def call(*arguments):
            result = function(self._handle, *arguments)
            self.check()
            return result

        return call

    def check(self) -> None:
        assert self._library.fake_problem(self._handle) == b""

    def stats(self) -> Stats:
        values = (ctypes.c_uint64 * len(Stats._fields))()
        self._library.fake_stats(self._handle, values)
        return Stats(*values)

    def finish(self, *streams: int) -> None:
        for stream in streams:
            self.advance(stream, 1 << 40)

    def close(self) -> bool:
        handle, self._handle = self._handle, None
        return self._library.fake_close(handle)

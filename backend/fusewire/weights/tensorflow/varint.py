"""Base-128 varints, as in LevelDB, Snappy and protocol buffers."""

from __future__ import annotations


def varint(data: bytes, at: int, end: int | None = None) -> tuple[int, int]:
    """Returns the number at `at`, and the offset behind it. Raises ValueError if it has more than
    64 bits or does not end before `end`."""
    value = 0
    for index in range(10):
        if at + index >= (len(data) if end is None else end):
            break
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80 and value < 1 << 64:
            return value, at + index + 1
    raise ValueError("not a number")

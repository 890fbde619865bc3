"""Decompresses Snappy's block format, which LevelDB-style tables may use."""

from __future__ import annotations

from fusewire.weights.tensorflow.varint import varint


class BadSnappy(ValueError):
    """The data are not in Snappy's format."""


def decompressed(data: bytes, most_bytes: int) -> bytes:
    """Returns the decompressed data. Raises BadSnappy, also if they are larger than
    `most_bytes`."""
    try:
        size, at = varint(data, 0)
        if size > most_bytes:
            raise BadSnappy(f"{size} bytes, wanted at most {most_bytes}")
        result = bytearray()
        while at < len(data):
            at = _element(data, at, result, size)
    except BadSnappy:
        raise
    except (IndexError, ValueError):
        raise BadSnappy("damaged compression") from None
    if len(result) != size:
        raise BadSnappy(f"{len(result)} bytes, wanted {size}")
    return bytes(result)


def _element(data: bytes, at: int, result: bytearray, size: int) -> int:
    """Appends a literal or a copy of earlier output. Returns the offset of the next element."""
    tag = data[at]
    at += 1
    if tag & 3 == 0:
        length = tag >> 2
        if length >= 60:
            width = length - 59
            length = int.from_bytes(_slice(data, at, width), "little")
            at += width
        length += 1
        result += _slice(data, at, length)
        at += length
    else:
        if tag & 3 == 1:
            length, offset = 4 + (tag >> 2 & 7), (tag >> 5) << 8 | data[at]
            at += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            length = 1 + (tag >> 2)
            offset = int.from_bytes(_slice(data, at, width), "little")
            at += width
        if not 0 < offset <= len(result):
            raise BadSnappy("a copy from before the beginning")
        seen = bytes(result[len(result) - offset :][:length])
        result += (seen * -(-length // len(seen)))[:length]
    if len(result) > size:
        raise BadSnappy("more than it says")
    return at


def _slice(data: bytes, at: int, length: int) -> bytes:
    piece = data[at : at + length]
    if len(piece) != length:
        raise BadSnappy("truncated")
    return piece

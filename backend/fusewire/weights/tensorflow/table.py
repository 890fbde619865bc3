"""LevelDB's table format, in which TensorFlow stores the index of a checkpoint.

    blocks, each with a trailer: u8 compression (0 none, 1 Snappy), u32 checksum
    footer, 48 bytes: handles (offset, size) of the metaindex and of the index block, magic

A block consists of entries (length shared with the previous key, length of the rest, length of the
value, the rest of the key, the value), the u32 offsets of its restart points, and their count. The
values of the index block are the handles of the blocks, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fusewire.weights.tensorflow.checksum import masked_crc32c
from fusewire.weights.tensorflow.snappy import BadSnappy, decompressed
from fusewire.weights.tensorflow.varint import varint

MOST_BYTES = 16 << 20  # of the file, and of a block: published indices have about 20 to 200 KB
MOST_ENTRIES = 100_000
MOST_KEY_BYTES = 4096
_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
_TRAILER_BYTES = 5


class BadTable(ValueError):
    """A fault in a table."""


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Returns every key with its value. Raises BadTable."""
    if len(data) < _FOOTER_BYTES:
        raise BadTable(f"got {len(data)} bytes, wanted at least {_FOOTER_BYTES}: truncated")
    footer = data[-_FOOTER_BYTES:]
    if int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise BadTable("not the index of a TensorFlow checkpoint, or truncated")
    _, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    entries: dict[bytes, bytes] = {}
    position, last = 0, None
    for _, value in _entries(_block(data, index)):
        handle, _ = _handle(value, 0)
        if handle[0] < position:
            raise BadTable("blocks overlap, or are not in order")
        position = sum(handle) + _TRAILER_BYTES
        for key, entry in _entries(_block(data, handle)):
            if last is not None and key <= last:
                raise BadTable("keys are not in order")
            last = key
            entries[key] = entry
            if len(entries) > MOST_ENTRIES:
                raise BadTable(f"over {MOST_ENTRIES} entries")
    return entries


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    try:
        offset, at = varint(data, at)
        size, at = varint(data, at)
    except ValueError:
        raise BadTable("a damaged block handle") from None
    return (offset, size), at


def _block(data: bytes, handle: tuple[int, int]) -> bytes:
    offset, size = handle
    end = offset + size
    if end + _TRAILER_BYTES > len(data) - _FOOTER_BYTES:
        raise BadTable(f"a block at bytes {offset}..{end} of {len(data)}: truncated")
    compression, checksum = struct.unpack_from("<BI", data, end)
    if masked_crc32c(data[offset : end + 1]) != checksum:
        raise BadTable(f"the block at byte {offset} has another checksum: damaged")
    block = data[offset:end]
    if compression == 0:
        return block
    if compression != 1:
        raise BadTable(f"compression {compression}, wanted none or Snappy")
    try:
        return decompressed(block, MOST_BYTES)
    except BadSnappy as error:
        raise BadTable(f"the block at byte {offset}: {error}") from None


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if len(block) < 4 or end < 0:
        raise BadTable("a damaged block")
    at, key = 0, b""
    while at < end:
        try:
            shared, at = varint(block, at, end)
            rest, at = varint(block, at, end)
            size, at = varint(block, at, end)
        except ValueError:
            raise BadTable("a damaged entry") from None
        if shared > len(key) or at + rest + size > end or shared + rest > MOST_KEY_BYTES:
            raise BadTable("a damaged entry")
        key = key[:shared] + block[at : at + rest]
        at += rest
        yield key, block[at : at + size]
        at += size

"""TensorFlow's checkpoint bundles, written after the formats' specifications (LevelDB's table
format, Snappy's, tensor_bundle.proto), with none of the code that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19, "bfloat16": 14}


@dataclass
class Written:
    """A variable. `dtype`: TensorFlow's, where the array's does not say it. `cuts`: where it is
    partitioned, and along which axis. `fields`, `shape` and `starts` of the slices: in place of the
    true ones."""

    array: np.ndarray
    dtype: str = ""
    axis: int = 0
    cuts: Sequence[int] = ()
    fields: Mapping[str, int] = field(default_factory=dict)
    shape: Sequence[int] | None = None
    starts: Sequence[int] | None = None


def write_bundle(
    folder: Path,
    variables: Mapping[str, Written | np.ndarray],
    *,
    prefix: str = "model.ckpt",
    shards: int = 1,
    big_endian: bool = False,
    snappy: bool = False,
    block_bytes: int = 300,
) -> None:
    data = [bytearray() for _ in range(shards)]
    order = ">" if big_endian else "<"
    header = _int(1, shards) + (_int(2, 1) if big_endian else b"") + _bytes(3, _int(1, 1))
    entries = {b"": header}

    def stored(array: np.ndarray, dtype: int, shard: int, each: Written) -> bytes:
        raw = np.ascontiguousarray(array, array.dtype.newbyteorder(order)).tobytes()
        place = {"shard": shard, "offset": len(data[shard]), "size": len(raw), **each.fields}
        data[shard] += raw
        return (
            _int(1, dtype)
            + _shape(array.shape if each.shape is None else each.shape)
            + _int(3, place["shard"])
            + _int(4, place["offset"])
            + _int(5, place["size"])
            + _fixed32(6, place.get("crc", masked(crc32c(raw))))
        )

    for index, (name, given) in enumerate(variables.items()):
        each = given if isinstance(given, Written) else Written(given)
        array, key, shard = each.array, name.encode(), index % shards
        dtype = DTYPES[each.dtype or array.dtype.name]
        if not each.cuts:
            entries[key] = stored(array, dtype, shard, each)
            continue
        slices = b""
        pieces = np.split(array, each.cuts, each.axis)
        for start, piece in zip(each.starts or [0, *each.cuts], pieces, strict=True):
            extents = [
                (start, piece.shape[axis]) if axis == each.axis else (0, -1)
                for axis in range(array.ndim)
            ]
            slices += _bytes(
                7,
                b"".join(
                    _bytes(1, b"" if length < 0 else _int(1, start) + _int(2, length, always=True))
                    for start, length in extents
                ),
            )
            entries[slice_key(key, extents)] = stored(piece, dtype, shard, Written(piece))
        entries[key] = _int(1, dtype) + _shape(array.shape) + slices
    for shard, content in enumerate(data):
        name = f"{prefix}.data-{shard:05}-of-{shards:05}"
        (folder / name).write_bytes(bytes(content))
    (folder / f"{prefix}.index").write_bytes(table(entries, block_bytes, snappy))


def _shape(sizes: Sequence[int]) -> bytes:
    return _bytes(2, b"".join(_bytes(2, _int(1, size)) for size in sizes))


def table(entries: Mapping[bytes, bytes], block_bytes: int = 300, snappy: bool = False) -> bytes:
    blocks: list[list[tuple[bytes, bytes]]] = [[]]
    for key, value in sorted(entries.items()):
        if sum(len(k) + len(v) for k, v in blocks[-1]) > block_bytes:
            blocks.append([])
        blocks[-1].append((key, value))
    result, index = bytearray(), []
    for block in blocks:
        content = compressed(_block(block)) if snappy else _block(block)
        index.append((block[-1][0], varint(len(result)) + varint(len(content))))
        result += _with_trailer(content, snappy)
    handles = []
    for extra in ([], index):
        content = _block(extra)
        handles.append(varint(len(result)) + varint(len(content)))
        result += _with_trailer(content, False)
    return bytes(result) + b"".join(handles).ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def _block(entries: Sequence[tuple[bytes, bytes]], restart_interval: int = 16) -> bytes:
    result, restarts, last = bytearray(), [0], b""
    for index, (key, value) in enumerate(entries):
        shared = 0
        if index % restart_interval:
            while key[: shared + 1] == last[: shared + 1] and shared < len(last):
                shared += 1
        elif index:
            restarts.append(len(result))
        result += varint(shared) + varint(len(key) - shared) + varint(len(value))
        result += key[shared:] + value
        last = key
    ends = [*restarts, len(restarts)]
    return bytes(result) + b"".join(number.to_bytes(4, "little") for number in ends)


def _with_trailer(content: bytes, snappy: bool) -> bytes:
    typed = content + bytes([snappy])
    return typed + masked(crc32c(typed)).to_bytes(4, "little")


def compressed(data: bytes) -> bytes:
    """Snappy: a copy where the four bytes that follow have been seen, else literals."""
    result, literal, seen, at = bytearray(varint(len(data))), bytearray(), {}, 0

    def flush() -> None:
        for start in range(0, len(literal), 60):
            piece = literal[start : start + 60]
            result.append((len(piece) - 1) << 2)
            result.extend(piece)
        literal.clear()

    while at < len(data):
        four = data[at : at + 4]
        match, seen[four] = seen.get(four), at
        if match is None or len(four) < 4:
            literal.append(data[at])
            at += 1
            continue
        length, offset = 4, at - match
        while length < 64 and at + length < len(data) and data[match + length] == data[at + length]:
            length += 1
        flush()
        if length < 12 and offset < 1 << 11:
            result += bytes([1 | (length - 4) << 2 | (offset >> 8) << 5, offset & 0xFF])
        else:
            result += bytes([2 | (length - 1) << 2]) + offset.to_bytes(2, "little")
        at += length
    flush()
    return bytes(result)


def slice_key(name: bytes, extents: Sequence[tuple[int, int]]) -> bytes:
    """For names without the bytes 0 and 255, fewer than 256 axes, and numbers in -64..8191."""
    key = b"\x00" + name + b"\x00\x01" + bytes([1, len(extents)])
    for number in (number for extent in extents for number in extent):
        key += (
            bytes([0x80 ^ (number & 0xFF)])
            if -64 <= number < 64
            else (0xC000 | number).to_bytes(2, "big")
        )
    return key


def varint(number: int) -> bytes:
    result = bytearray()
    number &= (1 << 64) - 1
    while number >= 0x80:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*result, number])


def _int(number: int, value: int, always: bool = False) -> bytes:
    return varint(number << 3) + varint(value) if value or always else b""


def _bytes(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def _fixed32(number: int, value: int) -> bytes:
    return varint(number << 3 | 5) + value.to_bytes(4, "little")


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()

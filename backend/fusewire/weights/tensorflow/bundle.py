"""TensorFlow's checkpoint bundles: PREFIX.index and its data shards, PREFIX.data-00000-of-00001 ….

The index is a table (`table.py`): "" -> the header, a variable's name -> its entry (dtype, shape,
shard, offset, size, checksum). The shards contain the raw values. The entry of a partitioned
variable has no values but lists its slices, which have entries of their own with keys made of name
and place. In a TF2 checkpoint, keys are paths of Python attributes; the names of variables are in
the object graph, which is stored as one string.
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import Any, Literal

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fusewire.errors import CheckpointError
from fusewire.weights.folder import file_in
from fusewire.weights.tensorflow.checksum import extended, masked, masked_crc32c
from fusewire.weights.tensorflow.messages import Entry, Header, ObjectGraph
from fusewire.weights.tensorflow.slices import SliceFault, joined, slice_key
from fusewire.weights.tensorflow.table import MOST_BYTES, BadTable, read_table
from fusewire.weights.tensorflow.variable import Named, Variable, part_of
from fusewire.weights.tensorflow.varint import varint

_MOST_SHARDS = 1000
_MOST_DIMENSIONS = 8
_MOST_SIZE = 1 << 40  # along one dimension
_BIG_ENDIAN = 1
_STRING = 7
# TensorFlow's number of a floating-point type -> safetensors' name, the numpy type for its bits.
_FLOATS = {1: ("F32", "f4"), 2: ("F64", "f8"), 14: ("BF16", "u2"), 19: ("F16", "f2")}
_OBJECT_GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"
# Keys with this part belong to the state of an optimizer.
_SLOTS = b"/.OPTIMIZER_SLOT/"


def read_bundle(folder: Path, index: str) -> list[Named]:
    """Returns the floating-point variables, with their names, of the checkpoint whose index is the
    file `index`; variables of other types are counters and are dropped. Raises CheckpointError."""
    return _Bundle(folder, index).variables()


class _Bundle:
    def __init__(self, folder: Path, index: str) -> None:
        self._folder, self._index = folder, index
        path = file_in(folder, index)
        if path is None:
            raise self._fault("no such file")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise self._fault(f"got {size} bytes, wanted at most {MOST_BYTES}")
        try:
            table = read_table(path.read_bytes())
        except BadTable as error:
            raise self._fault(str(error)) from None
        header = self._parsed(Header, b"the header", table.pop(b"", b""))
        if not 0 < header.num_shards <= _MOST_SHARDS:
            raise self._fault(f"got {header.num_shards} shards, wanted 1..{_MOST_SHARDS}")
        self._shard_count = header.num_shards
        self._order = ">" if header.endianness == _BIG_ENDIAN else "<"
        self._entries = {key: self._parsed(Entry, key, value) for key, value in table.items()}
        self._shards: dict[int, NDArray[np.uint8]] = {}
        self._check_places()

    def variables(self) -> list[Named]:
        names = self._names()
        found = []
        for key, entry in self._entries.items():
            if key.startswith(b"\0") or _SLOTS in key or entry.dtype not in _FLOATS:
                continue
            name = names.get(key, key).decode("utf-8", "replace")
            read = self._partitioned if entry.slices else self._whole
            found.append((name, read(key, entry)))
        return found

    def _whole(self, key: bytes, entry: Any) -> Variable:
        shape = self._shape(key, entry)
        dtype, kind = _FLOATS[entry.dtype]
        stored = self._bytes(entry)
        values = stored.view(self._order + kind).reshape(shape or (1,))

        def check() -> None:
            if masked_crc32c(stored) != entry.crc32c:
                raise self._fault(f"variable {_shown(key)} has another checksum: damaged")

        return Variable(dtype, shape, part_of(values), check)

    def _partitioned(self, key: bytes, entry: Any) -> Variable:
        parts = []
        for each in entry.slices:
            place = [
                (extent.start, extent.length if extent.HasField("length") else -1)
                for extent in each.extent
            ]
            part_key = slice_key(key, place)
            part = self._entries.get(part_key)
            if part is None or part.slices or part.dtype != entry.dtype:
                raise self._fault(
                    f"variable {_shown(key)} lacks a slice, or one is of another type"
                )
            parts.append((place, self._whole(part_key, part)))
        shape = self._shape(key, entry)
        try:
            whole = joined(shape, [(place, part.shape, part.read) for place, part in parts])
        except SliceFault as error:
            raise self._fault(f"variable {_shown(key)}: {error}") from None

        def check() -> None:
            for _, part in parts:
                part.check()

        return Variable(_FLOATS[entry.dtype][0], shape, whole, check)

    def _names(self) -> dict[bytes, bytes]:
        """Returns the key in a TF2 checkpoint -> the variable's name."""
        entry = self._entries.get(_OBJECT_GRAPH)
        if entry is None:
            return {}
        graph = self._parsed(ObjectGraph, _OBJECT_GRAPH, self._string(entry))
        return {
            attribute.checkpoint_key: attribute.full_name
            for node in graph.nodes
            for attribute in node.attributes
            if attribute.full_name
        }

    def _string(self, entry: Any) -> bytes:
        """Returns the value of a scalar string, which is stored as its length, a u32 checksum of
        the length, and its bytes."""
        data = self._bytes(entry)
        if entry.dtype != _STRING or data.size > MOST_BYTES:
            raise self._fault(f"got {data.size} bytes of objects, wanted at most {MOST_BYTES}")
        stored = data.tobytes()
        try:
            length, at = varint(stored, 0)
        except ValueError:
            raise self._fault("the graph of objects is damaged") from None
        text = stored[at + 4 :]
        # TensorFlow's checksum covers the length as u32, the checksum of the length, and the bytes.
        order: Literal["big", "little"] = "big" if self._order == ">" else "little"
        crc = extended(0, (length & 0xFFFFFFFF).to_bytes(4, order))
        if len(text) != length or masked(extended(crc, stored[at:])) != entry.crc32c:
            raise self._fault("the graph of objects is damaged")
        return text

    def _check_places(self) -> None:
        """Raises CheckpointError unless every entry is inside its shard, has the size of its shape,
        and overlaps no other."""
        spans = []
        for key, entry in self._entries.items():
            if entry.slices:
                continue
            if not 0 <= entry.shard_id < self._shard_count or entry.offset < 0 or entry.size < 0:
                raise self._fault(f"variable {_shown(key)} has an impossible place")
            if entry.dtype in _FLOATS:
                item_bytes = np.dtype(_FLOATS[entry.dtype][1]).itemsize
                wanted = math.prod(self._shape(key, entry)) * item_bytes
                if entry.size != wanted:
                    raise self._fault(
                        f"variable {_shown(key)} has {entry.size} bytes, wanted {wanted}"
                    )
            if entry.size:
                spans.append((entry.shard_id, entry.offset, entry.offset + entry.size, key))
        last, position = -1, 0
        for shard, start, end, key in sorted(spans):
            position = position if shard == last else 0
            if start < position:
                raise self._fault(f"variable {_shown(key)} overlaps another")
            if end > (held := self._shard(shard).size):
                raise self._fault(
                    f"variable {_shown(key)} ends at byte {end}, but {self._shard_name(shard)} has "
                    f"{held}: truncated"
                )
            last, position = shard, end

    def _shape(self, key: bytes, entry: Any) -> tuple[int, ...]:
        shape = tuple(dim.size for dim in entry.shape.dim)
        sizes_fit = all(0 <= size <= _MOST_SIZE for size in shape)
        if entry.shape.unknown_rank or len(shape) > _MOST_DIMENSIONS or not sizes_fit:
            raise self._fault(f"variable {_shown(key)} has an impossible shape")
        return shape

    def _bytes(self, entry: Any) -> NDArray[np.uint8]:
        if not entry.size:
            return np.zeros(0, np.uint8)
        return self._shard(entry.shard_id)[entry.offset : entry.offset + entry.size]

    def _shard(self, shard: int) -> NDArray[np.uint8]:
        if shard not in self._shards:
            name = self._shard_name(shard)
            path = file_in(self._folder, name)
            if path is None:
                raise self._fault(f"{name} is missing")
            try:
                with open(path, "rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError):
                raise self._fault(f"{name} is empty, or cannot be read") from None
            self._shards[shard] = np.frombuffer(mapped, np.uint8)
        return self._shards[shard]

    def _shard_name(self, shard: int) -> str:
        prefix = self._index.removesuffix(".index")
        return f"{prefix}.data-{shard:05}-of-{self._shard_count:05}"

    def _parsed(self, message: Any, key: bytes, value: bytes) -> Any:
        try:
            return message.FromString(value)
        except DecodeError:
            raise self._fault(f"{_shown(key)} is damaged") from None

    def _fault(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._index}: {what}; copy the checkpoint's files again")


def _shown(key: bytes) -> str:
    return repr(key.decode("utf-8", "replace"))[:120]

"""Reads safetensors by memory map: the whole header is validated before any tensor is used.

Format: u64 little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then
the data. Tensors must cover the data exactly (no gap, no overlap), as the reference implementation
demands too. Tensors are views of the map: opening a file copies nothing. As with every memory map,
a file must not be truncated while a model that reads it is loaded; replace it by renaming a new
file over it.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import CheckpointError

HEADER_LIMIT_BYTES = 100_000_000  # the reference implementation's limit

# Bytes per element, and the numpy type for its bits (None: not read by this package).
_DTYPES: dict[str, tuple[int, Any]] = {
    "F64": (8, np.float64),
    "F32": (4, np.float32),
    "F16": (2, np.float16),
    "BF16": (2, np.uint16),
    "I64": (8, np.int64),
    "I32": (4, np.int32),
    "I16": (2, np.int16),
    "I8": (1, np.int8),
    "U64": (8, np.uint64),
    "U32": (4, np.uint32),
    "U16": (2, np.uint16),
    "U8": (1, np.uint8),
    "BOOL": (1, np.bool_),
    "C64": (8, None),
    "F8_E4M3": (1, None),
    "F8_E5M2": (1, None),
    "F8_E8M0": (1, None),
    "F8_E4M3FNUZ": (1, None),
    "F8_E5M2FNUZ": (1, None),
}
ITEM_BYTES = {dtype: size for dtype, (size, _) in _DTYPES.items()}
FLOATS = ("F32", "F16", "BF16", "F64")
_HALVES = {"F16": "float16", "BF16": "bfloat16"}
_COMPARED_BYTES = 1 << 24  # compared at a time


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a mapped file; it is read only when it is accessed."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]  # the raw bytes, uint8 [nbytes]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def release_file(self) -> None:
        """Gives the memory of all pages of the tensor's file back to the system; they are read
        again when they are accessed."""
        whole: Any = self.data
        while isinstance(whole, np.ndarray):
            whole = whole.base
        if isinstance(whole, memoryview) and isinstance(whole.obj, mmap.mmap):
            whole.obj.madvise(mmap.MADV_DONTNEED)

    def equals(self, other: object) -> bool:
        """Whether both have the same bytes."""
        if not isinstance(other, StoredTensor):
            return False
        here, there = self.data, other.data
        return here.size == there.size and all(
            np.array_equal(here[at : at + _COMPARED_BYTES], there[at : at + _COMPARED_BYTES])
            for at in range(0, here.size, _COMPARED_BYTES)
        )

    def numbers(self, name: str, dtype: str) -> NDArray[Any]:
        """Returns a view of the values if they are stored in the 16-bit `dtype` (bfloat16: their
        bits, uint16), else the values in fp32."""
        if _HALVES.get(self.dtype) != dtype:
            return self.float32(name)
        stored: NDArray[Any] = self.data.view(_DTYPES[self.dtype][1])
        return stored.reshape(self.shape)

    def float32(self, name: str) -> NDArray[np.float32]:
        """Returns the values in fp32: a view if they are stored as aligned F32, else a converted
        copy."""
        if not self.is_float:
            raise CheckpointError(
                f"{self.file}: tensor {name!r}: got {self.dtype}, wanted one of "
                f"{', '.join(FLOATS)}; quantised weights need a quantization_config in config.json"
            )
        stored: NDArray[Any] = self.data.view(_DTYPES[self.dtype][1])
        if self.dtype == "BF16":  # the high half of an fp32
            stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        elif self.dtype != "F32":
            with np.errstate(over="ignore"):  # an fp64 that overflows fp32 becomes inf, as in torch
                stored = stored.astype(np.float32)
        elif not stored.flags.aligned:
            stored = stored.copy()
        return stored.reshape(self.shape)


def read_safetensors(path: Path, name: str | None = None) -> dict[str, StoredTensor]:
    """Returns the tensors of one file as views of its memory map.

    `name`: the name of the file in messages (default: its base name). Every fault of the file
    raises CheckpointError with this name.
    """
    name = name or path.name
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if size < 8:
                raise _fault(name, f"got {size} bytes, wanted at least 8")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise _fault(name, f"cannot be read ({getattr(error, 'strerror', error)})") from None
    header_bytes = int.from_bytes(mapped[:8], "little")
    if header_bytes > HEADER_LIMIT_BYTES:
        raise _fault(name, f"header of {header_bytes} bytes, wanted at most {HEADER_LIMIT_BYTES}")
    if header_bytes > size - 8:
        raise _fault(name, f"header of {header_bytes} bytes in a file of {size}: truncated")
    data = np.frombuffer(mapped, np.uint8, offset=8 + header_bytes)
    header = _parse_header(name, mapped[8 : 8 + header_bytes])
    return _tensors(name, header, data)


def _parse_header(file: str, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("duplicate key")
        return result

    if not text.startswith(b"{"):
        raise _fault(file, "the header is not a JSON object")
    try:
        header: dict[str, Any] = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise _fault(file, "the header is not valid JSON") from None
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _fault(file, "`__metadata__` is not a map of strings")
    return header


def _tensors(file: str, header: dict[str, Any], data: NDArray[np.uint8]) -> dict[str, StoredTensor]:
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, StoredTensor] = {}
    for tensor, entry in header.items():
        dtype, shape, (begin, end) = _entry(file, tensor, entry)
        wanted = math.prod(shape) * _DTYPES[dtype][0]
        if not 0 <= begin <= end <= data.size:
            raise _fault(
                file,
                f"tensor {tensor!r} at bytes {begin}..{end}, but the file has {data.size} "
                "bytes of data: truncated",
            )
        if end - begin != wanted:
            raise _fault(
                file, f"tensor {tensor!r} has {end - begin} bytes, wanted {wanted} for {shape}"
            )
        spans.append((begin, end, tensor))
        tensors[tensor] = StoredTensor(file, dtype, shape, data[begin:end])
    position = 0
    for begin, end, tensor in sorted(spans):
        if begin != position:
            what = "overlaps another tensor" if begin < position else "leaves a gap before it"
            raise _fault(file, f"tensor {tensor!r} {what}")
        position = end
    if position != data.size:
        raise _fault(file, f"{data.size - position} bytes after the last tensor")
    return tensors


def _entry(file: str, tensor: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    def sizes(value: Any) -> bool:
        return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _fault(file, f"tensor {tensor!r} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise _fault(file, f"tensor {tensor!r} has the unknown dtype {dtype!r}")
    if not sizes(shape) or len(shape) > 8:
        raise _fault(file, f"tensor {tensor!r} has an invalid shape")
    if not sizes(offsets) or len(offsets) != 2:
        raise _fault(file, f"tensor {tensor!r} has invalid data_offsets")
    return dtype, tuple(shape), (offsets[0], offsets[1])


def _fault(file: str, what: str) -> CheckpointError:
    return CheckpointError(f"{file}: {what}; download the file again")

"""Keras' HDF5 files: tf_model.h5, or the shards that tf_model.h5.index.json lists.

A layer is a group with the attribute `weight_names`; below it are its variables with their names,
whose components are groups. In a shard the variables are at the top level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import CheckpointError
from fusewire.weights.folder import file_in, read_json
from fusewire.weights.tensorflow.checksum import needs_extra
from fusewire.weights.tensorflow.variable import Named, Variable, part_of

WEIGHTS = "tf_model.h5"
INDEX = "tf_model.h5.index.json"
_MOST_SHARDS = 1000
_MOST_OBJECTS = 100_000
_MOST_DEPTH = 32
_MOST_DIMENSIONS = 8
_CACHE_BYTES = 1 << 20  # chunk cache of each dataset
_MOST_CHUNK_BYTES = 256 << 20
# Maximum ratio of a file's values to its size: weights hardly compress, decompression bombs do.
_MOST_GROWTH = 16
_FREE_BYTES = 1 << 20  # bytes of values that are allowed in addition, for small files
_FLOATS = {8: "F64", 4: "F32", 2: "F16"}
# gzip, shuffle, fletcher32, and h5py's lzf: for any other filter HDF5 would load a library.
_FILTERS = {1, 2, 3, 32000}


def read_h5(folder: Path) -> list[Named]:
    """Returns the floating-point variables with their names; variables of other types are counters
    and are dropped. A variable that layers share is returned for each of them. Raises
    CheckpointError."""
    return [named for file in _files(folder) for named in _File(folder, file).variables()]


def _files(folder: Path) -> list[str]:
    if file_in(folder, WEIGHTS) is not None:
        return [WEIGHTS]
    weight_map = (read_json(folder, INDEX) or {}).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise _fault(INDEX, "no `weight_map`")
    files = sorted(set(weight_map.values()))
    if not 0 < len(files) <= _MOST_SHARDS:
        raise _fault(INDEX, f"got {len(files)} shards, wanted 1..{_MOST_SHARDS}")
    return files


class _File:
    def __init__(self, folder: Path, name: str) -> None:
        try:
            import h5py
        except ImportError:
            raise needs_extra("h5py") from None
        path = file_in(folder, name)
        if path is None:
            raise _fault(name, "no such file")
        self._h5py, self._name = h5py, name
        self._size_bytes = path.stat().st_size
        self._seen: set[int] = set()
        self._values_bytes = 0
        try:
            self._root = h5py.File(path, "r", locking=False, rdcc_nbytes=_CACHE_BYTES)
        except (OSError, RuntimeError, ValueError):
            raise _fault(name, "not an HDF5 file, or damaged") from None

    def variables(self) -> Iterator[Named]:
        with self._damaged():
            for name, child in self._children(self._root):
                is_layer = isinstance(child, self._h5py.Group) and _is_layer(child)
                yield from self._object("" if is_layer else name, child, 1)

    def _below(self, group: Any, path: str, depth: int) -> Iterator[Named]:
        if depth > _MOST_DEPTH:
            raise _fault(self._name, f"groups over {_MOST_DEPTH} deep")
        for name, child in self._children(group):
            yield from self._object(f"{path}/{name}".lstrip("/"), child, depth + 1)

    def _object(self, path: str, child: Any, depth: int) -> Iterator[Named]:
        if isinstance(child, self._h5py.Group):
            yield from self._below(child, path, depth)
        elif isinstance(child, self._h5py.Dataset) and child.dtype.kind == "f":
            yield path, self._variable(path, child)

    def _children(self, group: Any) -> Iterator[tuple[str, Any]]:
        for name in group:
            if not isinstance(group.get(name, getlink=True), self._h5py.HardLink):
                raise _fault(self._name, f"{name[:120]!r} is a link to elsewhere, wanted none")
            child = group[name]
            address = self._h5py.h5o.get_info(child.id).addr
            if address in self._seen:
                raise _fault(self._name, f"{name[:120]!r} is linked twice, wanted once")
            self._seen.add(address)
            if len(self._seen) > _MOST_OBJECTS:
                raise _fault(self._name, f"over {_MOST_OBJECTS} objects")
            yield name, child

    def _variable(self, path: str, dataset: Any) -> Variable:
        name = repr(path)[:120]
        dtype = _FLOATS.get(dataset.dtype.itemsize)
        if dtype is None or dataset.shape is None or len(dataset.shape) > _MOST_DIMENSIONS:
            raise _fault(self._name, f"{name} has an impossible shape or type")
        created = dataset.id.get_create_plist()
        if created.get_layout() == self._h5py.h5d.VIRTUAL or created.get_external_count():
            raise _fault(self._name, f"{name} lies in another file, wanted it in this one")
        filters = {created.get_filter(index)[0] for index in range(created.get_nfilters())}
        if not filters <= _FILTERS:
            raise _fault(
                self._name, f"{name} has the filters {sorted(filters)}, wanted gzip or lzf"
            )
        size_bytes = dataset.dtype.itemsize
        if dataset.chunks and math.prod(dataset.chunks) * size_bytes > _MOST_CHUNK_BYTES:
            raise _fault(self._name, f"{name} has chunks over {_MOST_CHUNK_BYTES} bytes")
        values_bytes = math.prod(dataset.shape) * size_bytes
        stored_bytes = dataset.id.get_storage_size()
        if values_bytes and (not stored_bytes or (not filters and stored_bytes < values_bytes)):
            raise _fault(
                self._name, f"{name} has {stored_bytes} of {values_bytes} bytes: truncated"
            )
        self._values_bytes += values_bytes
        if self._values_bytes > _FREE_BYTES + _MOST_GROWTH * self._size_bytes:
            raise _fault(
                self._name,
                f"over {self._values_bytes} bytes of values in a file of {self._size_bytes}, "
                f"wanted at most {_MOST_GROWTH} times as many",
            )
        return Variable(dtype, dataset.shape, partial(self._read, dataset))

    def _read(self, dataset: Any, axis: int, start: int, stop: int) -> NDArray[Any]:
        with self._damaged():
            if not dataset.shape:
                return np.reshape(dataset[()], 1)
            part: NDArray[Any] = part_of(dataset)(axis, start, stop)
            return part

    @contextmanager
    def _damaged(self) -> Iterator[None]:
        """Replaces the library's messages for a damaged file, which are many lines of C."""
        try:
            yield
        except (KeyError, OSError, RuntimeError, TypeError, ValueError):
            raise _fault(self._name, "damaged") from None


def _is_layer(group: Any) -> bool:
    # Long attributes are split: weight_names0, weight_names1, …
    return any(name in group.attrs for name in ("weight_names", "weight_names0"))


def _fault(file: str, what: str) -> CheckpointError:
    return CheckpointError(f"{file}: {what}; download the file again")

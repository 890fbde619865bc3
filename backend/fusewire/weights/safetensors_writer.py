"""Writes safetensors a block at a time: no tensor has to fit into memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from fusewire.weights.safetensors import HEADER_LIMIT_BYTES, ITEM_BYTES


class Described(Protocol):
    """A tensor's dtype, as safetensors names it, and its shape."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class Written(Described, Protocol):
    """A tensor to be written: blocks of its values in order, little-endian and contiguous."""

    def blocks(self) -> Iterator[NDArray[Any]]: ...


def size_bytes(tensor: Described) -> int:
    """Returns the size of the tensor's values in bytes."""
    return math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]


def write_safetensors(
    path: Path, tensors: Mapping[str, Written], progress: Callable[[int], None]
) -> None:
    """Writes the file. `progress` is called with the bytes of each block. Raises OSError.

    Every tensor is aligned: wider types come first, and the header ends at a multiple of 8 bytes.
    """
    names = sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name].dtype], name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + size_bytes(tensors[name])
        header[name] = {
            "dtype": tensors[name].dtype,
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT_BYTES:
        raise ValueError(f"a header of {len(text)} bytes")
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for block in tensors[name].blocks():
                file.write(block.data)
                progress(block.nbytes)

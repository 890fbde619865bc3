"""Partitioned variables: finds the entries of their slices, and reads them as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.weights.tensorflow.variable import Read

# (start, length) along each axis; length -1: the whole axis.
Place = Sequence[tuple[int, int]]

_ESCAPES = {0x00: b"\x00\xff", 0xFF: b"\xff\x00"}


class SliceFault(ValueError):
    """A fault in the slices of a variable."""


def joined(shape: tuple[int, ...], parts: Sequence[tuple[Place, tuple[int, ...], Read]]) -> Read:
    """Returns a function that reads the slices `parts` (place, shape, read) of a variable of
    `shape` as one. Raises SliceFault unless they cover it exactly once. As in TensorFlow they
    differ along one axis."""
    axes = set()
    for place, part_shape, _ in parts:
        if len(place) != len(shape) or len(part_shape) != len(shape):
            raise SliceFault("a slice has another number of axes")
        for axis, ((start, length), size) in enumerate(zip(place, shape, strict=True)):
            if part_shape[axis] != (size if length < 0 else length):
                raise SliceFault("a slice has another shape than its place")
            if (start, part_shape[axis]) != (0, size):
                axes.add(axis)
    if len(axes) > 1:
        raise SliceFault("slices along several axes, wanted one")
    axis = axes.pop() if axes else 0
    spans, position = [], 0
    for start, length, read in sorted(
        (
            (place[axis][0], part_shape[axis], read) if shape else (0, 1, read)
            for place, part_shape, read in parts
        ),
        key=lambda span: span[:2],
    ):
        if start != position:
            raise SliceFault("its slices overlap, or leave a gap")
        position = start + length
        spans.append((start, position, read))
    if position != (shape[axis] if shape else 1):
        raise SliceFault("its slices are not all of it")

    def read_joined(along: int, start: int, stop: int) -> NDArray[Any]:
        if along != axis:
            return np.concatenate([read(along, start, stop) for _, _, read in spans], axis)
        return np.concatenate(
            [
                read(axis, max(start, first) - first, min(stop, last) - first)
                for first, last, read in spans
                if first < stop and start < last
            ],
            axis,
        )

    return read_joined


def slice_key(name: bytes, place: Place) -> bytes:
    """Returns the key of a slice's entry: 0, the variable's name, the number of axes, and start and
    length for each, in TensorFlow's order-preserving code."""
    escaped = b"".join(_ESCAPES.get(byte, bytes([byte])) for byte in name)
    key = _unsigned(0) + escaped + b"\x00\x01" + _unsigned(len(place))
    return key + b"".join(_signed(number) for extent in place for number in extent)


def _unsigned(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size, "big")


def _signed(number: int) -> bytes:
    """Encodes as many leading ones as there are bytes (zeros for a negative number), then the
    number."""
    magnitude = ~number if number < 0 else number
    size = magnitude.bit_length() // 7 + 1
    ones = ((1 << size) - 1) << (7 * size)  # the header: the top `size` of 8 * size bits
    return ((number ^ ones) & ((1 << 8 * size) - 1)).to_bytes(size, "big")

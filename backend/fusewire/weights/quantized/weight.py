"""A quantised matrix: its stored codes, scales and zero points, and its dequantised values."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_PIECE = 1 << 18  # elements that a thread dequantises at a time: a few MB with temporaries
_LEAST_GROUP = 32  # minimum group size of the 4-bit kernels


@dataclass(frozen=True)
class Codes:
    """Codes of `bits` bits, [rows, columns], several in a uint32 word or one in a uint8, to which
    `offset` is added modulo 256.

    With `axis` 1 the words are [rows, ceil(columns / codes per word)], with axis 0 [ceil(rows /
    codes per word), columns]. Code k of a word begins at bit `lanes[k] * bits`; without lanes codes
    are in order, from the lowest bits on.
    """

    words: NDArray[Any]  # a view of the file
    shape: tuple[int, int]
    bits: int
    axis: int = 1
    lanes: tuple[int, ...] = ()
    offset: int = 0

    @property
    def per_word(self) -> int:
        return 1 if self.words.itemsize == 1 else self.words.itemsize * 8 // self.bits

    def rows(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Returns the codes of these rows [end - begin, columns]. `begin` has to be a multiple of
        `per_word`."""
        count = self.per_word
        end = min(end, self.shape[0])
        if count == 1:
            codes = np.ascontiguousarray(self.words[begin:end])
            return codes + np.uint8(self.offset) if self.offset else codes
        lanes = self.lanes or range(count)
        mask = np.uint32((1 << self.bits) - 1)
        if self.axis == 1:
            words = np.ascontiguousarray(self.words[begin:end])
            codes = np.empty((end - begin, words.shape[1] * count), np.uint8)
            for at, lane in enumerate(lanes):
                codes[:, at::count] = (words >> np.uint32(lane * self.bits)) & mask
            return codes[:, : self.shape[1]]
        words = np.ascontiguousarray(self.words[begin // count : -(-end // count)])
        codes = np.empty((words.shape[0] * count, self.shape[1]), np.uint8)
        for at, lane in enumerate(lanes):
            codes[at::count] = (words >> np.uint32(lane * self.bits)) & mask
        return codes[: end - begin]

    def nibbles(
        self, begin: int, end: int, order: NDArray[np.int32] | None = None
    ) -> NDArray[np.uint8]:
        """Returns the 4-bit codes of rows begin to end, two per byte, the first of two columns in
        the low bits; with the columns in this order, or in their stored order."""
        if order is None and self.axis == 1 and self.per_word > 1 and not self.lanes:
            return np.ascontiguousarray(self.words[begin:end]).view(np.uint8)
        codes = self.rows(begin, end)
        if order is not None:
            codes = codes.take(order, axis=1)
        return codes[:, ::2] | codes[:, 1::2] << np.uint8(4)

    def all(self) -> NDArray[np.uint8]:
        return self.rows(0, self.shape[0])


BLOCKS = "float8_e4m3_blocks"
BLOCK = 128  # rows and columns per block of a weight in BLOCKS, and columns per block of its input


class StoredCodes(NamedTuple):
    """A weight in a format of 8-bit products."""

    format: str  # int8, float8_e4m3 or BLOCKS
    codes: NDArray[np.uint8]  # [rows, columns], the bytes of the format
    scales: NDArray[np.float32]  # [rows]; BLOCKS: [rows / BLOCK, columns / BLOCK], rounded up
    # The scale of the input; 0: dynamic, one per row of the input, from its largest magnitude.
    input_scale: float = 0.0


def joined(parts: Sequence[StoredCodes]) -> StoredCodes | None:
    """Returns the rows of all parts as one weight; None if formats or input scales differ, or if a
    block would have rows of two parts."""
    first = parts[0]
    alike = all(p.format == first.format and p.input_scale == first.input_scale for p in parts)
    whole = first.format != BLOCKS or all(len(p.codes) % BLOCK == 0 for p in parts[:-1])
    if not (alike and whole):
        return None
    codes, scales = (np.concatenate(each) for each in zip(*(p[1:3] for p in parts), strict=True))
    return StoredCodes(first.format, codes, scales, first.input_scale)


@dataclass(frozen=True)
class Int4:
    """weight[r, order[c]] = scales[r, g] * (code[r, c] - zeros[r, g]), where g is the index of c's
    group; groups are adjacent columns, equally many in each."""

    nibbles: NDArray[np.uint8]  # [rows, columns / 2]: codes, the first of two in the low bits
    scales: NDArray[np.float32]  # [rows, groups]
    zeros: NDArray[np.uint8]  # with the shape of scales
    order: NDArray[np.int32] | None  # [columns]; None: the stored order


@dataclass(frozen=True)
class QuantizedWeight:
    """weight[r, c] = scales[b, g] * (values[codes[r, c]] - zeros[b, g]), where b is
    r // block_rows and g is groups[c]."""

    codes: Codes  # [rows, columns]
    values: NDArray[np.float32]  # [2 ** bits]: the value of each code
    scales: NDArray[np.float32]  # [ceil(rows / block_rows), number of groups]
    zeros: NDArray[np.float32] | None  # with the shape of scales
    block_rows: int
    groups: NDArray[np.int64]  # [columns]: each column's group
    # The format, as in StoredCodes, of the products that the weight is meant for. Its input is to
    # be rounded to this format too, with a scale per row (or per BLOCK of it), or with input_scale.
    # None: the input is not rounded.
    products: str | None = None
    input_scale: float = 0.0

    def for_products(self) -> StoredCodes | None:
        """Returns the stored codes; None if the weight is not meant for 8-bit products, or has
        other codes, zero points, or several scales per row other than those of BLOCKS."""
        if self.products is None or self.zeros is not None or self.codes.words.itemsize != 1:
            return None
        rows, columns = self.codes.shape
        codes = self.codes.words.view(np.uint8).reshape(rows, columns)
        if self.products == BLOCKS:
            return StoredCodes(BLOCKS, codes, self.scales)
        if self.scales.shape[1] != 1:
            return None
        by_row = self.scales[np.arange(rows) // self.block_rows, 0]
        return StoredCodes(self.products, codes, by_row, self.input_scale)

    def int4(self) -> Int4 | None:
        """Returns the stored 4-bit codes, with the columns of each group adjacent. Returns None if
        the weight has other codes, or groups that kernels do not support. They support groups of
        the same number of columns, a power of two and at least 32, or one group of all columns; the
        number of columns has to be a multiple of 32."""
        rows, columns = self.codes.shape
        count = self.scales.shape[1]
        size = columns // count
        taken = count == 1 or (size >= _LEAST_GROUP and size & (size - 1) == 0)
        if (
            self.codes.bits != 4
            or self.block_rows != 1
            or columns % _LEAST_GROUP
            or size * count != columns
            or not taken
            or (np.bincount(self.groups, minlength=count) != size).any()
        ):
            return None
        order = np.argsort(self.groups, kind="stable").astype(np.int32)
        moved = None if np.array_equal(self.groups, equal_groups(columns, size)) else order
        nibbles = np.empty((rows, columns // 2), np.uint8)

        def fill(begin: int, end: int) -> None:
            nibbles[begin:end] = self.codes.nibbles(begin, end, moved)

        self._in_pieces(fill)
        zeros = np.zeros_like(self.scales) if self.zeros is None else self.zeros
        return Int4(nibbles, self.scales, (zeros - self.values[0]).astype(np.uint8), moved)

    def dequantized(self) -> NDArray[np.float32]:
        """Returns the weight [rows, columns], rounded to fp32 once."""
        out = np.empty(self.codes.shape, np.float32)
        self._in_pieces(lambda begin, end: self._fill(out, begin, end))
        return out

    def _in_pieces(self, fill: Callable[[int, int], None]) -> None:
        """Calls fill(begin, end) for all rows, in several threads."""
        rows, columns = self.codes.shape
        step = max(1, _PIECE // max(1, columns * self.codes.per_word)) * self.codes.per_word
        begins = range(0, rows, step)
        if len(begins) <= 1:
            fill(0, rows)
        else:  # numpy releases the GIL while it computes
            with ThreadPoolExecutor(min(len(begins), os.cpu_count() or 1)) as threads:
                list(threads.map(lambda at: fill(at, min(at + step, rows)), begins))

    def _fill(self, out: NDArray[np.float32], begin: int, end: int) -> None:
        numbers = out[begin:end]
        np.take(self.values, self.codes.rows(begin, end), out=numbers, mode="clip")
        blocks = np.arange(begin, end) // self.block_rows
        if self.zeros is not None:
            numbers -= self._by_column(self.zeros[blocks])
        numbers *= self._by_column(self.scales[blocks])

    def _by_column(self, by_group: NDArray[np.float32]) -> NDArray[np.float32]:
        return by_group if by_group.shape[1] == 1 else by_group.take(self.groups, axis=1)


def whole_numbers(bits: int, zero: int = 0) -> NDArray[np.float32]:
    """Returns the values of codes that count up from -zero."""
    return np.arange(1 << bits, dtype=np.float32) - np.float32(zero)


def twos_complement() -> NDArray[np.float32]:
    """Returns the values of int8 codes."""
    return np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)


def float8_e4m3() -> NDArray[np.float32]:
    """Returns the values of OCP's FP8 E4M3 codes (Micikevicius et al. 2022, FP8 Formats for Deep
    Learning): no infinity, NaN if all bits but the sign are set."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    numbers = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    numbers = np.where(codes & 127 == 127, np.nan, numbers)
    return np.where(codes & 128, -numbers, numbers).astype(np.float32)


def equal_groups(columns: int, size: int) -> NDArray[np.int64]:
    """Returns the group of each column, for groups of `size` adjacent columns."""
    return np.arange(columns) // size

"""A quantised matrix: what is stored of it, and the numbers that it stands for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_PIECE = 1 << 18  # numbers that a thread dequantises at a time: a few MB with what it needs
_LEAST_GROUP = 32  # of the kernels for 4-bit numbers


@dataclass(frozen=True)
class Codes:
    """Codes of `bits` bits, [rows, columns], several in a word of uint32 or one in a uint8.

    The words of `axis` 1 are [rows, ceil(columns / codes of a word)], those of axis 0
    [ceil(rows / codes of a word), columns]. Code k of a word is in the bits from `lanes[k] * bits`
    on; no lanes: in order, from the lowest bits on.
    """

    words: NDArray[Any]  # a view of the file
    shape: tuple[int, int]
    bits: int
    axis: int = 1
    lanes: tuple[int, ...] = ()

    @property
    def per_word(self) -> int:
        return self.words.itemsize * 8 // self.bits

    def rows(self, begin: int, end: int) -> NDArray[np.uint8]:
        """The codes of these rows [end - begin, columns]; `begin` is a multiple of `per_word`."""
        count = self.per_word
        end = min(end, self.shape[0])
        if count == 1:
            return np.ascontiguousarray(self.words[begin:end])
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
        """4-bit codes of rows begin to end, two a byte, the first of two columns in the low bits;
        the columns in this order, or as they are."""
        if order is None and self.axis == 1 and self.per_word > 1 and not self.lanes:
            return np.ascontiguousarray(self.words[begin:end]).view(np.uint8)
        codes = self.rows(begin, end)
        if order is not None:
            codes = codes.take(order, axis=1)
        return codes[:, ::2] | codes[:, 1::2] << np.uint8(4)

    def all(self) -> NDArray[np.uint8]:
        return self.rows(0, self.shape[0])


BLOCKS = "float8_e4m3_blocks"
BLOCK = 128  # rows and columns of a weight in BLOCKS, and columns of what it is multiplied by


class StoredCodes(NamedTuple):
    """A weight as products of 8 bits take it."""

    format: str  # int8, float8_e4m3 or BLOCKS
    codes: NDArray[np.uint8]  # [rows, columns], the bytes of the format
    scales: NDArray[np.float32]  # [rows], of BLOCKS [rows / BLOCK, columns / BLOCK], rounded up
    # The scale of what it is multiplied by; 0: each row's own, by its largest magnitude.
    input_scale: float = 0.0


def joined(parts: Sequence[StoredCodes]) -> StoredCodes | None:
    """The rows of all parts as one weight; None where formats or input scales differ, or a block
    would have rows of two."""
    first = parts[0]
    alike = all(p.format == first.format and p.input_scale == first.input_scale for p in parts)
    whole = first.format != BLOCKS or all(len(p.codes) % BLOCK == 0 for p in parts[:-1])
    if not (alike and whole):
        return None
    codes, scales = (np.concatenate(each) for each in zip(*(p[1:3] for p in parts), strict=True))
    return StoredCodes(first.format, codes, scales, first.input_scale)


@dataclass(frozen=True)
class Int4:
    """weight[r, order[c]] = scales[r, g] * (code[r, c] - zeros[r, g]), where groups of equally many
    neighbouring columns are counted by g."""

    nibbles: NDArray[np.uint8]  # [rows, columns / 2]: codes, the first of two in the low bits
    scales: NDArray[np.float32]  # [rows, groups]
    zeros: NDArray[np.uint8]  # as scales
    order: NDArray[np.int32] | None  # [columns]; None: as they are


@dataclass(frozen=True)
class QuantizedWeight:
    """weight[r, c] = scales[b, g] * (values[codes[r, c]] - zeros[b, g]), where b is
    r // block_rows and g is groups[c]."""

    codes: Codes  # [rows, columns]
    values: NDArray[np.float32]  # [2 ** bits]: the number that each code stands for
    scales: NDArray[np.float32]  # [ceil(rows / block_rows), number of groups]
    zeros: NDArray[np.float32] | None  # as scales
    block_rows: int
    groups: NDArray[np.int64]  # [columns]: each column's group
    # The format of products, as of StoredCodes, that it is meant for: what it is multiplied with is
    # to be rounded to that too, each row (or BLOCK of it) by itself, or all with the input scale.
    # None: it stays as it is.
    products: str | None = None
    input_scale: float = 0.0

    def for_products(self) -> StoredCodes | None:
        """The codes as they are stored; None where the weight is not meant for products of 8 bits,
        or has other codes, zeros, or several scales a row other than those of BLOCKS."""
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
        """Its codes of 4 bits as they are stored, with the columns of a group side by side. None
        where it has others, or groups that kernels do not take: they are equally many columns, a
        power of two, at least 32, or all columns, whose number is a multiple of 32."""
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
        """The weight [rows, columns], rounded to fp32 once."""
        out = np.empty(self.codes.shape, np.float32)
        self._in_pieces(lambda begin, end: self._fill(out, begin, end))
        return out

    def _in_pieces(self, fill: Callable[[int, int], None]) -> None:
        """Calls fill(begin, end) for all rows."""
        rows, columns = self.codes.shape
        step = max(1, _PIECE // max(1, columns * self.codes.per_word)) * self.codes.per_word
        begins = range(0, rows, step)
        if len(begins) <= 1:
            fill(0, rows)
        else:  # numpy computes without the interpreter's lock
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
    """Codes that count up from -zero."""
    return np.arange(1 << bits, dtype=np.float32) - np.float32(zero)


def twos_complement() -> NDArray[np.float32]:
    """The bytes of int8."""
    return np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)


def float8_e4m3() -> NDArray[np.float32]:
    """The bytes of OCP's FP8 E4M3 (Micikevicius et al. 2022, FP8 Formats for Deep Learning): no
    infinity, NaN where all bits but the sign are set."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    numbers = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    numbers = np.where(codes & 127 == 127, np.nan, numbers)
    return np.where(codes & 128, -numbers, numbers).astype(np.float32)


def equal_groups(columns: int, size: int) -> NDArray[np.int64]:
    """Each column's group where groups of `size` columns lie side by side."""
    return np.arange(columns) // size

"""A quantised matrix: what is stored of it, and the numbers that it stands for."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PIECE = 1 << 18  # numbers that a thread dequantises at a time: a few MB with what it needs


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

    def all(self) -> NDArray[np.uint8]:
        return self.rows(0, self.shape[0])


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
    # Whether what it is multiplied with is to be rounded too: to int8, each row by itself.
    int8_products: bool = False

    def int8(self) -> tuple[NDArray[np.int8], NDArray[np.float32]] | None:
        """Integers [rows, columns], as they are stored, and scales [rows], for products of int8;
        None where it is not meant for them, or has other numbers."""
        one_scale_a_row = self.zeros is None and self.scales.shape[1] == 1
        if not self.int8_products or not one_scale_a_row or self.codes.words.itemsize != 1:
            return None
        rows, columns = self.codes.shape
        numbers = self.codes.words.view(np.int8).reshape(rows, columns)
        return numbers, self.scales[np.arange(rows) // self.block_rows, 0]

    def dequantized(self) -> NDArray[np.float32]:
        """The weight [rows, columns], rounded to fp32 once."""
        rows, columns = self.codes.shape
        out = np.empty((rows, columns), np.float32)
        step = max(1, _PIECE // max(1, columns * self.codes.per_word)) * self.codes.per_word
        begins = range(0, rows, step)
        if len(begins) <= 1:
            self._fill(out, 0, rows)
        else:  # numpy computes without the interpreter's lock
            with ThreadPoolExecutor(min(len(begins), os.cpu_count() or 1)) as threads:
                list(threads.map(lambda at: self._fill(out, at, min(at + step, rows)), begins))
        return out

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

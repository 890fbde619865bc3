"""Philox4x32 and the dropout mask, in the terms of the paper and of csrc/core/dropout.h."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

Words = tuple[np.ndarray, ...]
LOW = np.uint64(0xFFFFFFFF)


def halves(number: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns the low and the high 32 bits of int64 or uint64, as uint64."""
    words = np.asarray(number).astype(np.uint64)
    return words & LOW, words >> np.uint64(32)


def philox(key: ArrayLike, counter: tuple[ArrayLike, ...], rounds: int = 10) -> Words:
    """Returns four words of 32 bits, as uint64, for every key and counter (four words of it)."""
    x = [np.asarray(word, np.uint64) for word in counter]
    keys = list(halves(key))
    for _ in range(rounds):
        (low0, high0), (low2, high2) = (
            halves(np.uint64(factor) * word)
            for factor, word in ((0xD2511F53, x[0]), (0xCD9E8D57, x[2]))
        )
        x = [high2 ^ x[1] ^ keys[0], low2, high0 ^ x[3] ^ keys[1], low0]
        steps = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
        keys = [(word + step) & LOW for word, step in zip(keys, steps, strict=True)]
    return tuple(x)


def dropout_factors(
    rows: ArrayLike, columns: ArrayLike, probability: float, seed: int, offset: int
) -> np.ndarray:
    """Returns float64[rows, columns], 0 or 1 / (1 - probability), for these rows and columns of a
    matrix."""
    row, column = np.asarray(rows)[:, None], np.asarray(columns)
    words = np.stack(philox(seed, (column // 8, row, *halves(np.int64(offset))), rounds=7))
    words = words.reshape(4, row.size, column.size)
    which = np.broadcast_to(column % 8, words.shape[1:])
    word = np.take_along_axis(words, (which // 2)[None], 0)[0]
    number = (word >> (which % 2 * 16).astype(np.uint64)) & np.uint64(0xFFFF)
    threshold = min(round(probability * 2**16), 2**16 - 1)
    return np.where(number < threshold, 0.0, 1 / (1 - probability))

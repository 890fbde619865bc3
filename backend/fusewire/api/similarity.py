"""Similarity functions of embeddings, by sentence-transformers' names: larger is more similar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fusewire.errors import InvalidInput, type_name

Matrix = NDArray[np.float64]


def similarity(name: str, a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
    """Returns the similarity of each row of `a` [n, dim] to each of `b` [m, dim]: float32 [n,
    m]."""
    return ALL_PAIRS[name](*_matrices(a, b)).astype(np.float32)


def similarity_pairwise(name: str, a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
    """Returns the similarity of each row of `a` [n, dim] to the same row of `b` [n, dim]: float32
    [n]."""
    one, other = _matrices(a, b)
    if len(one) != len(other):
        got = f"{len(one)} and {len(other)} embeddings"
        raise InvalidInput("embeddings", got, "the same number of both", "give pairs")
    return ROW_BY_ROW[name](one, other).astype(np.float32)


def _matrices(a: ArrayLike, b: ArrayLike) -> tuple[Matrix, Matrix]:
    """Returns both as float64 [n, dim], a vector as one row."""
    one, other = _floats(a), _floats(b)
    if one.ndim != 2 or other.ndim != 2 or one.shape[1] != other.shape[1]:
        got = f"shapes {list(one.shape)} and {list(other.shape)}"
        raise InvalidInput("embeddings", got, "[n, dim] and [m, dim]", "embed both by one model")
    return one, other


def _floats(given: ArrayLike) -> Matrix:
    try:
        return np.atleast_2d(np.asarray(given, np.float64))
    except (TypeError, ValueError):
        got = type_name(given)
        raise InvalidInput("embeddings", got, "arrays of numbers", "encode texts first") from None


def _unit(a: Matrix) -> Matrix:
    """Scales rows to length 1; a row of zeros is not changed."""
    return a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-12)


def _dot(a: Matrix, b: Matrix) -> Matrix:
    return a @ b.T


def _cosine(a: Matrix, b: Matrix) -> Matrix:
    return _dot(_unit(a), _unit(b))


def _euclidean(a: Matrix, b: Matrix) -> Matrix:
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * (a @ b.T)
    return -np.sqrt(np.maximum(squares, 0.0))


def _manhattan(a: Matrix, b: Matrix) -> Matrix:
    if not len(a):
        return np.empty((0, len(b)))
    return np.stack([-np.abs(b - row).sum(1) for row in a])  # without an array [n, m, dim]


ALL_PAIRS: dict[str, Callable[[Matrix, Matrix], Any]] = {
    "cosine": _cosine,
    "dot": _dot,
    "euclidean": _euclidean,
    "manhattan": _manhattan,
}
ROW_BY_ROW: dict[str, Callable[[Matrix, Matrix], Any]] = {
    "cosine": lambda a, b: (_unit(a) * _unit(b)).sum(1),
    "dot": lambda a, b: (a * b).sum(1),
    "euclidean": lambda a, b: -np.linalg.norm(a - b, axis=1),
    "manhattan": lambda a, b: -np.abs(a - b).sum(1),
}

"""Position ids and relative-position buckets; `rope.py` has RoPE.

numpy only, computed as in transformers, in fp32 where it uses fp32.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def counted_positions(
    cu_seqlens: NDArray[np.int32], lengths: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Returns 0, 1, 2, … within each sequence: int32 [tokens]. `lengths`: lengths of the
    sequences."""
    starts = np.repeat(cu_seqlens[:-1], lengths)
    return np.arange(cu_seqlens[-1], dtype=np.int32) - starts


def positions_after_padding(
    input_ids: NDArray[np.int64],
    cu_seqlens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    padding_index: int,
) -> NDArray[np.int32]:
    """Returns RoBERTa's positions, int32 [tokens]: tokens count from padding_index + 1; padding ids
    have position padding_index and are not counted."""
    real = input_ids != padding_index
    counted = np.zeros(real.size + 1, np.int32)
    np.cumsum(real, out=counted[1:])
    before = np.repeat(counted[cu_seqlens[:-1]], lengths)
    return (counted[1:] - before) * real + np.int32(padding_index)


def sinusoids(rows: int, columns: int) -> NDArray[np.float32]:
    """Returns [rows, columns]: the sines of a position's angles, then their cosines (Vaswani et
    al., 2017, section 3.5, who interleave them)."""
    column = np.arange(columns)
    angles = np.arange(rows)[:, None] / np.power(10000.0, 2 * (column // 2) / columns)
    both = np.concatenate([np.sin(angles[:, ::2]), np.cos(angles[:, 1::2])], axis=1)
    return both.astype(np.float32)


def tensor2tensor_sinusoids(rows: int, columns: int) -> NDArray[np.float32]:
    """Returns [rows, columns] as `sinusoids`, with wavelengths from 2 pi to 10000 * 2 pi inclusive,
    as in tensor2tensor; an odd last column is zero."""
    half = columns // 2
    step = np.float32(-math.log(10000) / (half - 1))
    exponents = np.arange(half, dtype=np.float32) * step
    # Rounded once, as in torch: an error in the last bit grows with the position.
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angles = np.arange(rows, dtype=np.float32)[:, None] * frequencies
    odd = np.zeros((rows, columns % 2), np.float32)
    return np.concatenate([np.sin(angles), np.cos(angles), odd], axis=1)


def text_positions(
    input_ids: NDArray[np.int64],
    cu_seqlens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    padding_index: int | None,
) -> NDArray[np.int32]:
    """Returns the positions in whole texts: counted from 0, or with `padding_index` from behind it,
    as in `Embeddings`."""
    if padding_index is None:
        return counted_positions(cu_seqlens, lengths)
    return positions_after_padding(input_ids, cu_seqlens, lengths, padding_index)


def relative_buckets(
    max_length: int, buckets: int = 32, max_distance: int = 128, *, causal: bool = False
) -> NDArray[np.int64]:
    """Returns the bucket of each distance j - i in -(L-1)..L-1: int64 [2L-1] (Raffel et al., 2020).

    Each direction has half of the buckets. With `causal` all are for keys before the query, and
    keys behind it share the bucket of distance 0. Of a direction's buckets, half are for single
    distances and half for logarithmic ranges.
    """
    backward = -np.arange(-(max_length - 1), max_length, dtype=np.int64)
    half = buckets if causal else buckets // 2
    exact = half // 2
    distance = np.maximum(backward, 0) if causal else np.abs(backward)
    with np.errstate(divide="ignore"):
        log = np.log(distance.astype(np.float32) / np.float32(exact))
    scaled = log / np.float32(math.log(max_distance / exact)) * np.float32(half - exact)
    far = exact + np.where(distance < exact, 0, scaled).astype(np.int64)
    bucket: NDArray[np.int64] = np.where(distance < exact, distance, np.minimum(far, half - 1))
    if not causal:
        bucket[backward < 0] += half
    return bucket

"""Factors of channels, and the changes of a checkpoint's tensors by them.

Factors are powers of two, so nothing is rounded: in a model without Gemma's norms, everything that
is computed in fp32 keeps its bits, and weights that are stored in bfloat16 keep their format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusewire.models.assemble import Weights, in_stored_order
from fusewire.models.stored_weights import Dense, Norm
from fusewire.smoothing.channels import Channels
from fusewire.smoothing.maxima import Maxima

_MOST_EXPONENT = 16  # such channels round to zero in int8, and no value overflows fp32

Exponents = NDArray[np.int32]


@dataclass(frozen=True)
class Change:
    """A change of a tensor: its rows (the elements of a vector) times 2 ** rows, its columns times
    2 ** columns. `one_plus`: the stored values are less by 1 (Gemma); the sum is multiplied."""

    rows: Exponents | None = None
    columns: Exponents | None = None
    one_plus: bool = False

    def of(self, stored: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.one_plus:
            assert self.rows is not None
            return (np.ldexp(stored.astype(np.float64) + 1, self.rows) - 1).astype(np.float32)
        changed = stored
        if self.rows is not None:
            powers = np.ldexp(np.float32(1), self.rows)
            changed = changed * powers.reshape(-1, *[1] * (stored.ndim - 1))
        if self.columns is not None:
            changed = changed * np.ldexp(np.float32(1), self.columns)
        return changed


def changes(
    channels: Sequence[Channels], maxima: Maxima, weights: Weights, alpha: float
) -> dict[str, Change]:
    """Returns the changes by tensor name."""
    found: dict[str, Change] = {}
    rows: dict[Dense, Exponents] = {}
    columns: dict[Dense, Exponents] = {}
    for each in channels:
        exponents = _exponents(each, maxima[each.source], weights, alpha)
        if isinstance(each.source, Norm):
            found |= _of_norm(each.source, -exponents)
        else:
            rows[each.source] = np.append(
                np.zeros(each.source.outputs - each.size, np.int32), -exponents
            )
        for reader in each.readers:
            columns[reader] = _as_read(exponents, each)
    for dense in rows.keys() | columns.keys():
        found |= _of_dense(dense, rows.get(dense), columns.get(dense))
    return found


def _exponents(
    channels: Channels, activations: NDArray[np.float32], weights: Weights, alpha: float
) -> Exponents:
    """Returns log2 of the paper's max |x| ** alpha / max |W| ** (1 - alpha), rounded to integers,
    less their median, since a common factor of all channels changes nothing; 0 for channels whose
    activations or weights are all zero."""
    read = np.max([np.abs(weights.matrix(each)).max(axis=0) for each in channels.readers], axis=0)
    read = read.reshape(-1, channels.repeats, channels.width).max(axis=1).reshape(-1)
    known = (activations > 0) & (read > 0) & np.isfinite(activations) & np.isfinite(read)
    exponents = np.zeros(channels.size, np.int32)
    if known.any():
        wanted = alpha * np.log2(activations[known]) - (1 - alpha) * np.log2(read[known])
        nearest = np.rint(wanted - np.median(wanted))
        exponents[known] = nearest.clip(-_MOST_EXPONENT, _MOST_EXPONENT)
    return exponents


def _as_read(exponents: Exponents, channels: Channels) -> Exponents:
    heads = exponents.reshape(-1, 1, channels.width)
    return heads.repeat(channels.repeats, axis=1).reshape(-1)


def _of_norm(norm: Norm, exponents: Exponents) -> dict[str, Change]:
    weight = {f"{norm.name}.weight": Change(exponents, one_plus=norm.one_plus)}
    return weight | ({f"{norm.name}.bias": Change(exponents)} if norm.bias else {})


def _of_dense(dense: Dense, rows: Exponents | None, columns: Exponents | None) -> dict[str, Change]:
    assert not dense.averaged  # in DeiT's heads each name has inputs of its own
    found: dict[str, Change] = {}
    stored = None if rows is None else in_stored_order(rows, dense)
    sizes = dense.rows or (dense.outputs // len(dense.names),) * len(dense.names)
    ends = np.cumsum(sizes)
    for name, size, end in zip(dense.names, sizes, ends, strict=True):
        own = None if stored is None else stored[end - size : end]
        axes = (columns, own) if dense.transposed else (own, columns)
        found[f"{name}.weight"] = Change(*axes)
        if own is not None and f"{name}.bias" in dense.tensors():
            found[f"{name}.bias"] = Change(own)
    return found
